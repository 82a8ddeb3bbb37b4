// Package karpenter runs Karpenter's scheduling simulation with the NodeOverlay of docs/AUTOSCALING.md. A module of its own: only it
// imports Karpenter.
package karpenter
