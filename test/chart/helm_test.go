//go:build root

package chart

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
)

const chartDir = "../../install/charts/gpuslice"

// helm runs the program that test/setup.sh --helm has built.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	where, err := exec.Command("../setup.sh", "--where-helm").Output()
	require.NoError(t, err)
	program := filepath.Join(strings.TrimSpace(string(where)), "helm")
	_, err = os.Stat(program)
	require.NoError(t, err, "run test/setup.sh --helm")
	home := t.TempDir()
	c := exec.Command(program, args...)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home, "KUBECONFIG=" + filepath.Join(home, "none")}
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	return out.String(), errs.String(), err
}

// render is the chart with values, each KEY=VALUE as for --set-json or the name of a file of values.
func render(t *testing.T, namespace string, values ...string) string {
	t.Helper()
	asked := namespace + "\n" + strings.Join(values, "\n")
	if before, is := rendered.Load(asked); is {
		return before.(string)
	}
	args := []string{"template", "gpuslice", chartDir, "--namespace", namespace, "--kube-version", "1.36.3"}
	for _, v := range values {
		if strings.HasSuffix(v, ".yaml") {
			args = append(args, "--values", v)
		} else {
			args = append(args, "--set-json", v)
		}
	}
	out, errs, err := helm(t, args...)
	require.NoError(t, err, "helm template %q: %s", values, errs)
	rendered.Store(asked, out)
	return out
}

// rendered are what render gave: helm takes longer than all that is done with it.
var rendered sync.Map

// strict refuses fields that don't exist, and fields that are given twice.
var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// documents are those of a stream of YAML that hold something.
func documents(text string) (found []string) {
	for _, d := range strings.Split("\n"+text, "\n---\n") {
		for line := range strings.Lines(d) {
			if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#") {
				found = append(found, d)
				break
			}
		}
	}
	return found
}

// foreign matches objects of which the types are not Kubernetes'.
var foreign = regexp.MustCompile(`(?m)^apiVersion: (monitoring\.coreos\.com|security\.openshift\.io|cilium\.io)/`)

// objects decodes what was rendered, by Kubernetes' own types.
func objects(t *testing.T, text string) (found []runtime.Object) {
	t.Helper()
	for _, d := range documents(text) {
		if foreign.MatchString(d) {
			continue
		}
		object, _, err := strict.Decode([]byte(d), nil, nil)
		require.NoError(t, err, "%s", d)
		found = append(found, object)
	}
	return found
}

// variants are ways to install the chart, which between them render every line of it.
var variants = map[string][]string{
	"default":      nil,
	"extender":     {`scheduler.mode="extender"`, `scheduler.name=""`},
	"privileged":   {`agent.driver={"access":"privileged","libraryDir":"/usr/lib64"}`},
	"exempt":       {`agent.config={"exempt-namespaces":["dcgm"]}`},
	"no-barrier":   {`barrier.install=false`},
	"mig":          {`agent.config={"mig-strategy":"mixed","on-violation":"kill"}`},
	"host-network": {`agent.hostNetwork=true`, `scheduler.hostNetwork=true`, `webhook={"hostNetwork":true,"url":"https://192.0.2.1:8443"}`, `apiServer={"host":"192.0.2.1","port":6443}`},
	"monitored":    {`monitoring={"podMonitor":{"enabled":true,"labels":{"release":"p"}},"schedulerMonitor":{"enabled":true}}`, `networkPolicy={"enabled":true,"from":[{"namespaceSelector":{}}]}`},
	"hami":         {`grantKey.enabled=false`, `admission.writers=["system:serviceaccount:kube-system:hami-device-plugin"]`, `scheduler.settings={"gpuQuota":"kube-system/gpuquota","nodePolicy":"spread"}`, `agent.nodeConfig={"nodeconfig":[{"name":"n1","devicesplitcount":5}]}`},
	"certificate":  {`webhook.certificate={"existingSecret":"tls","caBundle":"Y2E="}`, `webhook.configurationAnnotations={"cert-manager.io/inject-ca-from":"gpus/tls"}`},
	"keys":         {`grantKey={"existingSecret":"mine","existingConfigMap":"mine"}`},
	"gpu-operator": {`gpuOperator.enabled=true`},
	"openshift":    {`openshift.enabled=true`, `barrier.install=false`},
	"cilium":       {`networkPolicy={"enabled":true,"egress":true,"cilium":true}`},
	"verify":       {`verify={"enabled":true,"nodes":["node-1","node-2"],"tolerations":[{"operator":"Exists"}]}`, `networkPolicy={"enabled":true,"from":[{"namespaceSelector":{}}]}`},
	"dra":          {`dra.enabled=true`},
	"claims":       {`dra={"enabled":true,"claimNamespaces":["team-a","team-b"]}`},
	"discovery":    {`discovery.enabled=true`, `networkPolicy.enabled=true`},
	"small":        {`scheduler.replicas=1`, `webhook.replicas=1`, `rbac.people=false`, `admission.policy=false`, `runtimeClass.create=false`, `agent.metricsPort=0`, `scheduler.debugPort=0`},
	"agent-only":   {`scheduler.enabled=false`, `webhook.enabled=false`, `agent.driver.access="none"`},
	"other-names":  {`fullnameOverride="slices"`, `resourceNames={"count":"example.com/gpu","priority":"-"}`, `commonLabels={"team":"gpu"}`, `image={"repository":"registry.example/gpuslice","digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}`},
	"placed":       {`imagePullSecrets=[{"name":"pull"}]`, `agent.nodeSelector={"gpu":"on"}`, `agent.extraArgs=["--log-level=debug"]`, `agent.extraVolumes=[{"name":"x","emptyDir":{}}]`, `agent.extraVolumeMounts=[{"name":"x","mountPath":"/x"}]`, `agent.extraEnv=[{"name":"A","value":"b"}]`, `agent.seLinuxOptions={"type":"spc_t","level":"s0"}`, `agent.affinity={"nodeAffinity":{}}`, `scheduler.tolerations=[{"operator":"Exists"}]`, `webhook.nodeSelector={"a":"b"}`},
}

func TestLint(t *testing.T) {
	for name, values := range variants {
		args := []string{"lint", "--strict", "--kube-version", "1.36.3", chartDir}
		for _, v := range values {
			args = append(args, "--set-json", v)
		}
		out, errs, err := helm(t, args...)
		require.NoError(t, err, "%s: %s%s", name, out, errs)
		require.Empty(t, errs, "a warning with each command")
	}
}

// Everything that the chart can render is read by Kubernetes, to the last field.
func TestRenderedObjectsAreKubernetes(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			require.NotEmpty(t, objects(t, render(t, "gpus", values...)))
		})
	}
}
