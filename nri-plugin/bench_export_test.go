package nriplugin

// ExpectValidation makes the plugin remember its answers for the validation that
// follows them, as Configure does with a runtime that validates.
func (p *Plugin) ExpectValidation() { p.intents.enable(true) }
