package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/gpuslice/gpuslice/test/harness"
)

// WaitPod waits until want accepts a pod, and returns the pod. The error has want's last error and the pod's
// events.
func (c *Cluster) WaitPod(ctx context.Context, namespace, name string, patience time.Duration, want func(*corev1.Pod) error) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := harness.Until(ctx, patience, func(ctx context.Context) (err error) {
		if pod, err = c.API.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return want(pod)
	})
	if err != nil {
		return pod, fmt.Errorf("pod %s: %w\n%s", name, err, c.Events(context.WithoutCancel(ctx), namespace, name))
	}
	return pod, nil
}

// Events are the events of an object, one a line.
func (c *Cluster) Events(ctx context.Context, namespace, name string) string {
	list, err := c.API.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	if err != nil {
		return err.Error()
	}
	var lines []string
	for _, e := range list.Items {
		lines = append(lines, fmt.Sprintf("%s %s (%d): %s", e.Type, e.Reason, e.Count, e.Message))
	}
	return strings.Join(lines, "\n")
}

// Statuses are the statuses of all of a pod's containers, the ephemeral ones too.
func Statuses(pod *corev1.Pod) []corev1.ContainerStatus {
	var all []corev1.ContainerStatus
	all = append(all, pod.Status.InitContainerStatuses...)
	all = append(all, pod.Status.ContainerStatuses...)
	return append(all, pod.Status.EphemeralContainerStatuses...)
}

// Running wants all of a pod's ordinary containers to run.
func Running(pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodFailed {
		return fmt.Errorf("it has failed: %s %s", pod.Status.Reason, pod.Status.Message)
	}
	if pod.Spec.NodeName == "" {
		return errors.New("it is not bound")
	}
	if len(pod.Status.ContainerStatuses) < len(pod.Spec.Containers) {
		return errors.New("its containers are not there")
	}
	for _, s := range pod.Status.ContainerStatuses {
		if s.State.Running == nil {
			return fmt.Errorf("container %s does not run: %+v", s.Name, state(s))
		}
	}
	return nil
}

// state is what a container waits for or ended by.
func state(s corev1.ContainerStatus) string {
	switch {
	case s.State.Waiting != nil:
		return s.State.Waiting.Reason + ": " + s.State.Waiting.Message
	case s.State.Terminated != nil:
		return fmt.Sprintf("ended with %d, %s: %s", s.State.Terminated.ExitCode, s.State.Terminated.Reason, s.State.Terminated.Message)
	default:
		return "nothing is known of it"
	}
}

// ExecIn runs a command in a container of a pod. A non-zero exit status is not an error.
func (c *Cluster) ExecIn(ctx context.Context, pod *corev1.Pod, container string, command ...string) (stdout, stderr string, exitCode int, err error) {
	for _, s := range Statuses(pod) {
		if id, found := strings.CutPrefix(s.ContainerID, "containerd://"); found && s.Name == container {
			return c.Exec(ctx, id, command...)
		}
	}
	return "", "", 0, fmt.Errorf("pod %s has no container %s that was started", pod.Name, container)
}

// Logs is what the first attempt of a container wrote, without CRI's line heads.
func (c *Cluster) Logs(pod *corev1.Pod, container string) (string, error) {
	return harness.ReadLog(filepath.Join(c.Dir, "private/var/log/pods", pod.Namespace+"_"+pod.Name+"_"+string(pod.UID), container, "0.log"))
}

// NewControlPlane starts only etcd and kube-apiserver, the latter with further arguments: a cluster of objects, for nodes without
// a kubelet. It has to be closed also after an error.
func NewControlPlane(ctx context.Context, apiServer ...string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return nil, err
	}
	c := &Cluster{Node: &harness.Node{}, Dir: dir, ip: addressOf(dir), apiServerArgs: apiServer}
	if err := c.StartEtcd(ctx); err != nil {
		return c, fmt.Errorf("etcd: %w", err)
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return c, fmt.Errorf("kube-apiserver: %w", err)
	}
	return c, nil
}

// OnNode runs one of our programs on the cluster's machine, as its administrator does. A non-zero exit status is not an error.
func (c *Cluster) OnNode(ctx context.Context, program string, args ...string) (stdout, stderr string, exitCode int, err error) {
	path, err := harness.Artefact("bin", program)
	if err != nil {
		return "", "", 0, err
	}
	var command []string
	if c.namespaces != nil {
		command = c.namespaces.enter()
	}
	command = append(append(command, path), args...)
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		err = nil
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode(), err
}

// RuntimeSocket and RuntimeConfig are containerd's, on the cluster's machine.
func (c *Cluster) RuntimeSocket() string { return filepath.Join(c.Dir, "c", "c.sock") }
func (c *Cluster) RuntimeConfig() string { return filepath.Join(c.Dir, "c", "config.toml") }
