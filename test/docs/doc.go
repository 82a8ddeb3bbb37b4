// Package docs holds the documents against the code: their links lead somewhere, the
// messages that they quote are said, and the commands that they show are executed.
//
// A command is what stands in a block that begins with ```sh. Each is run here on a machine
// with simulated GPUs, or by the suite that brings up what it needs, or it is named with the
// reason why no test can run it.
package docs
