package feedback

// Claims are the usage files for Owners.Find: of containers, and of the claims that containers have in common.
type Claims struct {
	// UsageFiles are by the ID of the container, and by that of the claim.
	UsageFiles map[string]string
	common     map[string]string // claims by member
}

func NewClaims(size int) *Claims {
	return &Claims{UsageFiles: make(map[string]string, size), common: map[string]string{}}
}

// Add adds a claim; members are the containers that have it in common, if there are such.
func (c *Claims) Add(id, usageFile string, members []string) {
	c.UsageFiles[id] = usageFile
	for _, m := range members {
		c.UsageFiles[m], c.common[m] = usageFile, id
	}
}

// ID returns the ID of a container's claim.
func (c *Claims) ID(container string) string {
	if claim, is := c.common[container]; is {
		return claim
	}
	return container
}

// Of replaces the containers of processes by their claims.
func (c *Claims) Of(owners map[int]string) map[int]string {
	for pid, container := range owners {
		owners[pid] = c.ID(container)
	}
	return owners
}
