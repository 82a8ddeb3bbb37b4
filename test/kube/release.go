package kube

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/gpuslice/gpuslice/api"
	"github.com/gpuslice/gpuslice/test/harness"
)

// Where the chart is installed, and what its parts are called.
const (
	Release   = "gpuslice"
	Namespace = "gpuslice-system"

	AgentName     = Release + "-agent"
	SchedulerName = Release + "-scheduler"
	ExtenderName  = Release + "-extender"
	WebhookName   = Release + "-webhook"
)

// patience is how long a part of the cluster may take to be there, on a machine that is busy.
const patience = 3 * time.Minute

// ImportImage loads the container image that `make image` has made, or another.
func (c *Cluster) ImportImage(ctx context.Context, archive string) error {
	if _, err := os.Stat(archive); err != nil {
		return fmt.Errorf("there is no container image: run `make image` first: %w", err)
	}
	return c.Import(ctx, archive)
}

// Helm runs helm against the cluster, in the chart's namespace.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	path, err := Tool("helm")
	if err != nil {
		return "", err
	}
	kubeconfig, err := c.Kubeconfig(Admin)
	if err != nil {
		return "", err
	}
	// Its own directories, so that it reads and writes nothing of the user's.
	home := filepath.Join(c.Dir, "helm")
	env := []string{"HELM_CONFIG_HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_DATA_HOME=" + home, "KUBECONFIG=" + kubeconfig}
	return harness.Run(ctx, env, path, append(args, "--namespace="+Namespace)...)
}

// Kubectl runs kubectl as the administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	path, err := Tool("kubectl")
	if err != nil {
		return "", err
	}
	kubeconfig, err := c.Kubeconfig(Admin)
	if err != nil {
		return "", err
	}
	bin, err := harness.Artefact("bin")
	if err != nil {
		return "", err
	}
	return harness.Run(ctx, []string{"KUBECONFIG=" + kubeconfig, "PATH=" + bin + ":" + os.Getenv("PATH")}, path, args...)
}

// ChartImage is the image that the chart names, and that `make image` has made.
func ChartImage() (string, error) {
	root, err := harness.Repository()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(filepath.Join(root, "install/charts/gpuslice/Chart.yaml"))
	if err != nil {
		return "", err
	}
	var chart struct{ AppVersion string }
	if err := yaml.Unmarshal(text, &chart); err != nil {
		return "", err
	}
	return "docker.io/library/gpuslice:" + chart.AppVersion, nil
}

// chartValues are helm's arguments for this cluster.
func (c *Cluster) chartValues() ([]string, error) {
	root, err := harness.Repository()
	if err != nil {
		return nil, err
	}
	args := []string{filepath.Join(root, "install/charts/gpuslice"),
		"--values=" + filepath.Join(root, "test/kube/values-simulated.yaml")}
	if c.options.Component == Extender {
		args = append(args, "--set=scheduler.mode=extender", "--set=scheduler.name=")
	}
	return args, nil
}

// InstallChart installs the chart, or upgrades it to these values, and waits until all of it is ready.
func (c *Cluster) InstallChart(ctx context.Context, more ...string) error {
	values, err := c.chartValues()
	if err != nil {
		return err
	}
	if err := c.labelNode(ctx); err != nil {
		return err
	}
	args := append([]string{"upgrade", "--install", "--create-namespace", Release}, values...)
	if _, err := c.Helm(ctx, append(args, more...)...); err != nil {
		return err
	}
	return c.WaitRelease(ctx)
}

// labelNode labels the node as one with a GPU, so that an agent runs there.
func (c *Cluster) labelNode(ctx context.Context) error {
	return harness.Until(ctx, patience, func(ctx context.Context) error {
		_, err := c.API.CoreV1().Nodes().Patch(ctx, c.name, types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, api.LabelHasGPU), metav1.PatchOptions{})
		return err
	})
}

// WaitRelease waits until all parts of the release are as they are wanted.
func (c *Cluster) WaitRelease(ctx context.Context) error {
	apps := c.API.AppsV1()
	err := harness.Until(ctx, patience, func(ctx context.Context) error {
		sets, err := apps.DaemonSets(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range sets.Items {
			if err := rolledOut(&sets.Items[i]); err != nil {
				return err
			}
		}
		deployments, err := apps.Deployments(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range deployments.Items {
			if err := deployed(&deployments.Items[i]); err != nil {
				return err
			}
		}
		// A pod that ends counts as up to date while it still runs, if a rollback returns to its template.
		pods, err := c.API.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			if pods.Items[i].DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is still there", pods.Items[i].Name)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, c.describeRelease(context.WithoutCancel(ctx)))
	}
	return nil
}

func rolledOut(d *appsv1.DaemonSet) error {
	s := d.Status
	if n := s.DesiredNumberScheduled; n == 0 || s.ObservedGeneration < d.Generation || s.UpdatedNumberScheduled != n || s.NumberReady != n || s.NumberUnavailable != 0 {
		return fmt.Errorf("daemon set %s: %d of %d pods are ready, %d up to date", d.Name, s.NumberReady, s.DesiredNumberScheduled, s.UpdatedNumberScheduled)
	}
	return nil
}

func deployed(d *appsv1.Deployment) error {
	s := d.Status
	if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != *d.Spec.Replicas || s.ReadyReplicas != *d.Spec.Replicas || s.Replicas != *d.Spec.Replicas {
		return fmt.Errorf("deployment %s: of %d replicas %d are ready, %d up to date, %d there", d.Name, *d.Spec.Replicas, s.ReadyReplicas, s.UpdatedReplicas, s.Replicas)
	}
	return nil
}

// describeRelease is what people would look at when it doesn't come up: pods, their events and logs.
func (c *Cluster) describeRelease(ctx context.Context) string {
	pods, err := c.API.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	text := ""
	for i := range pods.Items {
		p := &pods.Items[i]
		text += fmt.Sprintf("pod %s: %s\n%s\n", p.Name, p.Status.Phase, c.Events(ctx, Namespace, p.Name))
		for _, s := range Statuses(p) {
			text += fmt.Sprintf("  container %s: %s\n", s.Name, state(s))
			text += c.lastLog(ctx, p, s.Name)
		}
	}
	return text
}

func (c *Cluster) lastLog(ctx context.Context, p *corev1.Pod, container string) string {
	lines := int64(15)
	data, err := c.API.CoreV1().Pods(p.Namespace).GetLogs(p.Name, &corev1.PodLogOptions{Container: container, TailLines: &lines}).DoRaw(ctx)
	if err != nil {
		return err.Error() + "\n"
	}
	return string(data)
}

// PodsOf are the pods of a part of the release.
func (c *Cluster) PodsOf(ctx context.Context, component string) ([]corev1.Pod, error) {
	return podsOf(ctx, c.API, component)
}

// Restarts returns how often each container of a part of gpuslice was restarted, by pod.
func (c *Cluster) Restarts(ctx context.Context, component string) (map[string]int32, error) {
	pods, err := podsOf(ctx, c.API, component)
	restarts := map[string]int32{}
	for _, p := range pods {
		for _, status := range p.Status.ContainerStatuses {
			restarts[p.Name+"/"+status.Name] = status.RestartCount
		}
	}
	return restarts, err
}

// podsOf are the pods of a part of the release, by its label app.kubernetes.io/component.
func podsOf(ctx context.Context, api kubernetes.Interface, component string) ([]corev1.Pod, error) {
	list, err := api.CoreV1().Pods(Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=gpuslice,app.kubernetes.io/component=" + component,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
