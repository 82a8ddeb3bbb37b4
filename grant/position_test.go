package grant

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMatchPositionAgainstEveryPod makes pods of up to five containers, shows
// matchPosition what the kubelet would list of each, and checks that it gives no
// container another's position.
func TestMatchPositionAgainstEveryPod(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	answers := 0
	for range 20_000 {
		pod := randomPod(random)
		for i, c := range pod {
			position, reason := matchPosition(sizesOf(pod), listedOf(pod), c.name)
			if reason != "" {
				continue
			}
			answers++
			if c.devices == 0 {
				require.True(t, position == noPosition || sizesOf(pod)[position] == 0, "%v %s", pod, c.name)
			} else {
				require.Equal(t, i, position, "%v %s", pod, c.name)
			}
		}
		if position, reason := matchPosition(sizesOf(pod), listedOf(pod), "ephemeral"); reason == "" {
			require.Equal(t, noPosition, position, "%v ephemeral", pod)
		}
	}
	require.Greater(t, answers, 10_000, "the test must not pass by refusing everything")
}

// podContainer is a container of a made-up pod.
type podContainer struct {
	name    string
	devices int
	plain   bool // a plain init container, which the kubelet does not list
}

func randomPod(random *rand.Rand) (pod []podContainer) {
	inits, apps := random.IntN(3), 1+random.IntN(3)
	for i := range inits + apps {
		pod = append(pod, podContainer{fmt.Sprint("c", i), random.IntN(3), i < inits && random.IntN(2) == 0})
	}
	return pod
}

func sizesOf(pod []podContainer) (sizes []int) {
	for _, c := range pod {
		sizes = append(sizes, c.devices)
	}
	return sizes
}

func listedOf(pod []podContainer) (listed []ContainerDevices) {
	for _, c := range pod {
		if !c.plain {
			listed = append(listed, ContainerDevices{c.name, c.devices})
		}
	}
	return listed
}
