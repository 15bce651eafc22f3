// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"net/http"

	"k8s.io/client-go/rest"
)

// Answers tells whether an API server serves all of some paths, such as /readyz and the
// kinds that Terrace needs: nil, or what is missing first.
func Answers(ctx context.Context, config *rest.Config, paths ...string) error {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer c.CloseIdleConnections()
	for _, path := range paths {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+path, nil)
		if err != nil {
			return err
		}
		response, err := c.Do(request)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", path, response.Status)
		}
	}
	return nil
}
