// Package docs compares the documents with the code: the targets of their links exist, the code has the
// messages that they quote, and the commands that they show are executed.
//
// A command is what stands in a block that begins with ```sh. Each is run here on a machine
// with simulated GPUs, or by the suite that brings up what it needs, or it is named with the
// reason why no test can run it.
package docs
