// Package browser looks at the agent's page and the scheduler's in a headless Chromium, as a
// person would: the text that is seen, and how long the bars are. `make screenshots` keeps
// pictures of them in docs/screenshots.
package browser
