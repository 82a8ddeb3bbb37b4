package migrate

import (
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// named returns a webhook of a configuration; nil: there is none.
func named(c *admissionv1.MutatingWebhookConfiguration, name string) *admissionv1.MutatingWebhook {
	if c == nil {
		return nil
	}
	for i := range c.Webhooks {
		if c.Webhooks[i].Name == name {
			return &c.Webhooks[i]
		}
	}
	return nil
}

// disjoint reports whether no set of labels can match both selectors. nil matches all.
func disjoint(a, b *metav1.LabelSelector) bool {
	for _, x := range requirements(a) {
		for _, y := range requirements(b) {
			if x.Key == y.Key && (excludes(x, y) || excludes(y, x)) {
				return true
			}
		}
	}
	return false
}

func requirements(s *metav1.LabelSelector) []metav1.LabelSelectorRequirement {
	if s == nil {
		return nil
	}
	all := slices.Clone(s.MatchExpressions)
	for key, value := range s.MatchLabels {
		all = append(all, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: []string{value}})
	}
	return all
}

// excludes reports whether a label that x demands can't be one that y accepts.
func excludes(x, y metav1.LabelSelectorRequirement) bool {
	within := func(others []string) func(string) bool {
		return func(value string) bool { return slices.Contains(others, value) }
	}
	switch {
	case y.Operator == metav1.LabelSelectorOpDoesNotExist:
		return x.Operator == metav1.LabelSelectorOpIn || x.Operator == metav1.LabelSelectorOpExists
	case x.Operator != metav1.LabelSelectorOpIn:
		return false
	case y.Operator == metav1.LabelSelectorOpIn:
		return !slices.ContainsFunc(x.Values, within(y.Values))
	case y.Operator == metav1.LabelSelectorOpNotIn:
		return !slices.ContainsFunc(x.Values, func(value string) bool { return !slices.Contains(y.Values, value) })
	}
	return false
}
