// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	kubecli "k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
)

// runKubectl runs kubectl in this process, as its own main does. A command that
// fails ends the process from inside kubectl, after its message; so this
// returns only when it was done.
func runKubectl(_ context.Context, kubeconfig string, args []string) int {
	// kubectl ends at an interrupt by not handling it, except where it does.
	signal.Reset(os.Interrupt, syscall.SIGTERM)
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	if kubeconfig != "" {
		flags.KubeConfig = &kubeconfig
	}
	root := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler([]string{"kubectl"}),
		Arguments:     append([]string{"kubectl"}, args...),
		ConfigFlags:   flags,
		IOStreams:     genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
	})
	root.SetArgs(args)
	if err := kubecli.RunNoErrOutput(root); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}
