package kueue

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/resource"
	config "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/yaml"
)

// page has the manifests of docs/KUEUE.md.
type page struct {
	configuration string   // Kueue's, a part
	queue         []string // the objects of the queue
	job           string
	claims        string   // a part of Kueue's configuration: with ResourceClaims
	claimQueue    []string // the objects of a queue of those
}

func manifests(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile("../../docs/KUEUE.md")
	require.NoError(t, err)
	var blocks []string
	for i, part := range strings.Split(string(text), "```") {
		if block, is := strings.CutPrefix(part, "yaml\n"); i%2 == 1 && is {
			blocks = append(blocks, block)
		}
	}
	require.Len(t, blocks, 5)
	return page{blocks[0], strings.Split(blocks[1], "---\n"), blocks[2], blocks[3], strings.Split(blocks[4], "---\n")}
}

// source is the directory of Kueue's module.
func source(t *testing.T) string {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(dir))
}

// The controller is a tool of another module: it builds only with the versions of its release.
func TestTypesAreTheControllers(t *testing.T) {
	version := func(file string) string {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return regexp.MustCompile(`\ssigs\.k8s\.io/kueue (v\S+)`).FindStringSubmatch(string(text))[1]
	}
	require.Equal(t, version("go.mod"), version("../tools-kueue/go.mod"))
}

// read refuses unknown fields.
func read[T any](t *testing.T, text string) (object T) {
	require.NoError(t, yaml.UnmarshalStrict([]byte(text), &object), text)
	return object
}

// requireValid checks an object with the schema of Kueue's CustomResourceDefinition.
func requireValid(t *testing.T, crd, text string) {
	data, err := os.ReadFile(filepath.Join(source(t), "config/components/crd/bases", "kueue.x-k8s.io_"+crd+".yaml"))
	require.NoError(t, err)
	definition := read[apiextensionsv1.CustomResourceDefinition](t, string(data))
	object := read[map[string]any](t, text)
	for _, version := range definition.Spec.Versions {
		if definition.Spec.Group+"/"+version.Name != object["apiVersion"] || definition.Spec.Names.Kind != object["kind"] {
			continue
		}
		require.True(t, version.Served)
		var schema apiextensions.CustomResourceValidation
		require.NoError(t, apiextensionsv1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(version.Schema, &schema, nil))
		validator, _, err := validation.NewSchemaValidator(schema.OpenAPIV3Schema)
		require.NoError(t, err)
		require.Empty(t, validation.ValidateCustomResource(nil, object, validator))
		return
	}
	require.Fail(t, "the CustomResourceDefinition has no such version", "%v %v", object["apiVersion"], object["kind"])
}

func configuration(t *testing.T, part string) config.Configuration {
	t.Helper()
	return read[config.Configuration](t, "apiVersion: config.kueue.x-k8s.io/v1beta2\nkind: Configuration\n"+part)
}

// What a job requests is what the queue has a quota of, after the transformations; otherwise Kueue never admits the job.
func TestManifests(t *testing.T) {
	page := manifests(t)
	c, queue := configuration(t, page.configuration), page.queue
	require.Len(t, queue, 3)
	for i, crd := range []string{"resourceflavors", "clusterqueues", "localqueues"} {
		requireValid(t, crd, queue[i])
	}
	flavor, cluster, local := read[kueue.ResourceFlavor](t, queue[0]), read[kueue.ClusterQueue](t, queue[1]), read[kueue.LocalQueue](t, queue[2])
	job := read[batchv1.Job](t, page.job)
	require.Equal(t, cluster.Name, string(local.Spec.ClusterQueue))
	require.Equal(t, map[string]string{corev1.LabelMetadataName: local.Namespace}, cluster.Spec.NamespaceSelector.MatchLabels)
	require.Equal(t, local.Name, job.Labels["kueue.x-k8s.io/queue-name"])
	require.Equal(t, local.Namespace, job.Namespace)

	require.Len(t, cluster.Spec.ResourceGroups, 1)
	group := cluster.Spec.ResourceGroups[0]
	quotas := map[corev1.ResourceName]resource.Quantity{}
	require.Equal(t, flavor.Name, string(group.Flavors[0].Name))
	for i, quota := range group.Flavors[0].Resources {
		require.Equal(t, group.CoveredResources[i], quota.Name, "in the same order: Kueue demands it")
		quotas[quota.Name] = quota.NominalQuota
	}
	for _, container := range job.Spec.Template.Spec.Containers {
		for name, amount := range container.Resources.Limits {
			for _, transformation := range c.Resources.Transformations {
				if transformation.Input != name {
					continue
				}
				require.Equal(t, config.Replace, *transformation.Strategy)
				require.Equal(t, corev1.ResourceName("nvidia.com/gpu"), transformation.MultiplyBy)
				require.Len(t, transformation.Outputs, 1)
				count := container.Resources.Limits[transformation.MultiplyBy]
				for output, factor := range transformation.Outputs {
					require.Equal(t, int64(1), factor.Value())
					name, amount = output, *resource.NewQuantity(amount.Value()*count.Value(), resource.DecimalSI)
				}
			}
			quota, covered := quotas[name]
			require.True(t, covered, name)
			require.LessOrEqual(t, amount.Cmp(quota), 0, "%s: %s of %s", name, amount.String(), quota.String())
		}
	}
}

// The queue of ResourceClaims has a quota of the resource that their DeviceClass is mapped to.
func TestManifestsOfClaims(t *testing.T) {
	page := manifests(t)
	require.Len(t, page.claimQueue, 2)
	for i, crd := range []string{"clusterqueues", "localqueues"} {
		requireValid(t, crd, page.claimQueue[i])
	}
	cluster, local := read[kueue.ClusterQueue](t, page.claimQueue[0]), read[kueue.LocalQueue](t, page.claimQueue[1])
	require.Equal(t, cluster.Name, string(local.Spec.ClusterQueue))
	group := cluster.Spec.ResourceGroups[0]
	require.Equal(t, read[kueue.ResourceFlavor](t, page.queue[0]).Name, string(group.Flavors[0].Name))
	mappings := configuration(t, page.claims).Resources.DeviceClassMappings
	require.Len(t, mappings, 1)
	require.Equal(t, []corev1.ResourceName{mappings[0].Name}, group.CoveredResources)
	require.Equal(t, mappings[0].Name, group.Flavors[0].Resources[0].Name)
}

// A schema that accepts everything would prove nothing.
func TestSchemas(t *testing.T) {
	queue := manifests(t).queue
	wrong := strings.Replace(queue[1], "nominalQuota: \"10000\"", "nominalQuota: [1]", 1)
	require.NotEqual(t, queue[1], wrong)
	require.Error(t, yaml.UnmarshalStrict([]byte(wrong), new(kueue.ClusterQueue)))
	require.Error(t, yaml.UnmarshalStrict([]byte(strings.Replace(queue[1], "coveredResources", "resources", 1)), new(kueue.ClusterQueue)))
}
