// SPDX-FileCopyrightText: The Terrace Authors
// SPDX-License-Identifier: Apache-2.0

package sops

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/security/keyvault/azkeys"
	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sts"
	"github.com/aws/smithy-go"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// maxAnswer bounds what is read of a key service's answer.
const maxAnswer = 64 << 10

// unwrapVault asks the transit engine of Vault or OpenBao. The client library is not
// used: it takes addresses, proxies and tokens from the environment and the home
// directory.
func (d *Decryptor) unwrapVault(ctx context.Context, k masterKey) ([]byte, error) {
	token := d.keys.vaultToken
	if token == "" && d.environment {
		token = os.Getenv("VAULT_TOKEN")
	}
	if token == "" {
		return nil, errNotHere
	}
	u, err := url.Parse(k.raw.Address)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("the address is not a URL")
	}
	u = u.JoinPath("v1", path.Clean("/"+k.raw.Engine), "decrypt", path.Base(path.Clean("/"+k.raw.Key)))
	body, err := json.Marshal(map[string]string{"ciphertext": k.enc})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the address is not a URL")
	}
	req.Header.Set("X-Vault-Token", token)
	req.Header.Set("X-Vault-Request", "true")
	req.Header.Set("Content-Type", "application/json")
	var out struct {
		Data struct {
			Plaintext string `json:"plaintext"`
		} `json:"data"`
		Errors []string `json:"errors"`
	}
	status, err := d.ask(req, &out)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, refused(status, strings.Join(out.Errors, "; "))
	}
	return decodeShare(out.Data.Plaintext)
}

// ask sends a request and reads the answer, whatever its status.
func (d *Decryptor) ask(req *http.Request, out any) (status int, err error) {
	resp, err := d.http.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the address is in the message already
		}
		return 0, fmt.Errorf("no answer: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, fmt.Errorf("read the answer: %w", err)
	}
	if err := json.Unmarshal(body, out); err != nil && resp.StatusCode == http.StatusOK {
		// What else answers there is not shown: the address comes from the file.
		return 0, errors.New("the answer is not that of a key service")
	}
	return resp.StatusCode, nil
}

// refused says what a key service said.
func refused(status int, message string) error {
	if message == "" {
		return fmt.Errorf("refused with status %d", status)
	}
	return fmt.Errorf("refused with status %d: %s", status, shown(message))
}

// shown returns a text of a stranger as far as it fits a message.
func shown(message string) string { return shownUpTo(200, message) }

func shownUpTo(n int, message string) string {
	message = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, message)
	if len(message) > n {
		message = strings.ToValidUTF8(message[:n], "") + "…"
	}
	return message
}

func decodeShare(s string) ([]byte, error) {
	share, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(share) == 0 || len(share) > maxShare {
		return nil, errors.New("the answer has no data key")
	}
	return share, nil
}

var arn = regexp.MustCompile(`^arn:aws[\w-]*:kms:([a-z0-9-]+):[0-9]+:(?:key|alias)/.+$`)

// unwrapAWS asks AWS KMS, in the role that the file names if it names one.
func (d *Decryptor) unwrapAWS(ctx context.Context, k masterKey) ([]byte, error) {
	if d.keys.aws == nil && d.identity == nil && !d.environment {
		return nil, errNotHere
	}
	m := arn.FindStringSubmatch(k.raw.Arn)
	if m == nil {
		return nil, errors.New("it is not the ARN of a key")
	}
	blob, err := base64.StdEncoding.DecodeString(k.enc)
	if err != nil {
		return nil, errors.New("its encrypted data key is malformed")
	}
	region := m[1]
	var creds aws.CredentialsProvider
	switch {
	case d.keys.aws != nil:
		c := d.keys.aws
		creds = credentials.NewStaticCredentialsProvider(c.ID, c.Secret, c.Token)
	case d.identity != nil:
		value, err := d.identity.AWS(region).Retrieve(ctx)
		if err != nil {
			return nil, d.identity.refused(err)
		}
		creds = credentials.StaticCredentialsProvider{Value: value}
	default:
		cfg, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithRegion(region))
		if err != nil {
			return nil, errors.New("the process has no credentials of AWS")
		}
		creds = cfg.Credentials
	}
	if k.raw.Role != "" {
		session := "terrace"
		out, err := sts.New(sts.Options{Region: region, Credentials: creds, HTTPClient: d.http}).
			AssumeRole(ctx, &sts.AssumeRoleInput{RoleArn: &k.raw.Role, RoleSessionName: &session})
		if err != nil {
			return nil, fmt.Errorf("assume role %s: %w", k.raw.Role, awsError(err))
		}
		if out.Credentials == nil {
			return nil, fmt.Errorf("assume role %s: the answer has no credentials", k.raw.Role)
		}
		creds = credentials.NewStaticCredentialsProvider(aws.ToString(out.Credentials.AccessKeyId),
			aws.ToString(out.Credentials.SecretAccessKey), aws.ToString(out.Credentials.SessionToken))
	}
	in := &kms.DecryptInput{KeyId: &k.raw.Arn, CiphertextBlob: blob, EncryptionContext: map[string]string{}}
	for name, v := range k.raw.Context {
		if v != nil {
			in.EncryptionContext[name] = *v
		}
	}
	out, err := kms.New(kms.Options{Region: region, Credentials: creds, HTTPClient: d.http}).Decrypt(ctx, in)
	if err != nil {
		return nil, awsError(err)
	}
	return out.Plaintext, nil
}

// awsError shortens an error of the SDK, which also tells of attempts and requests.
func awsError(err error) error {
	var api smithy.APIError
	if errors.As(err, &api) {
		return fmt.Errorf("refused: %s", shown(api.ErrorCode()+": "+api.ErrorMessage()))
	}
	return noAnswer(err)
}

// noAnswer keeps the root of an error of a client library.
func noAnswer(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return fmt.Errorf("no answer: %w", err)
}

const scopeGCP = "https://www.googleapis.com/auth/cloudkms"

// gcpTypes are the kinds of credentials that name no file, program or address of
// this machine to get a token from.
var gcpTypes = []string{string(google.ServiceAccount), string(google.AuthorizedUser)}

func checkGCP(data []byte) error {
	var c struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return errors.New("it is not JSON")
	}
	if !slices.Contains(gcpTypes, c.Type) {
		return fmt.Errorf("credentials of type %q are not taken from a Secret; use %s", c.Type, strings.Join(gcpTypes, " or "))
	}
	return nil
}

// gcpTokens returns the source of tokens, which keeps one until it expires.
func (d *Decryptor) gcpTokens() (oauth2.TokenSource, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.gcp != nil {
		return d.gcp, nil
	}
	// The context of one file would end the tokens of all.
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, d.http)
	var creds *google.Credentials
	var err error
	switch {
	case d.keys.gcp != nil:
		var c struct {
			Type google.CredentialsType `json:"type"`
		}
		if err := json.Unmarshal(d.keys.gcp, &c); err != nil {
			return nil, errors.New("the credentials are not JSON")
		}
		creds, err = google.CredentialsFromJSONWithType(ctx, d.keys.gcp, c.Type, scopeGCP)
	case d.identity != nil:
		creds = &google.Credentials{TokenSource: d.identity.GCP}
	default:
		creds, err = google.FindDefaultCredentials(ctx, scopeGCP)
	}
	if err != nil {
		// The cause can quote the credentials.
		return nil, errors.New("the credentials cannot be used")
	}
	d.gcp = creds.TokenSource
	return d.gcp, nil
}

var resourceID = regexp.MustCompile(`^projects/[^/?#]+/locations/[^/?#]+/keyRings/[^/?#]+/cryptoKeys/[^/?#]+$`)

// unwrapGCP asks GCP KMS.
func (d *Decryptor) unwrapGCP(ctx context.Context, k masterKey) ([]byte, error) {
	if d.keys.gcp == nil && d.identity == nil && !d.environment {
		return nil, errNotHere
	}
	if !resourceID.MatchString(k.raw.Resource) {
		return nil, errors.New("it is not the resource id of a key")
	}
	tokens, err := d.gcpTokens()
	if err != nil {
		return nil, err
	}
	token, err := tokens.Token()
	if err != nil {
		if d.keys.gcp == nil && d.identity != nil {
			return nil, d.identity.refused(err)
		}
		var r *oauth2.RetrieveError
		if errors.As(err, &r) && r.Response != nil {
			return nil, fmt.Errorf("get a token: %w", refused(r.Response.StatusCode, r.ErrorCode))
		}
		return nil, errors.New("get a token: no answer")
	}
	body, err := json.Marshal(map[string]string{"ciphertext": k.enc})
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://cloudkms.googleapis.com/v1/"+k.raw.Resource+":decrypt", bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("it is not the resource id of a key")
	}
	req.Header.Set("Content-Type", "application/json")
	token.SetAuthHeader(req)
	var out struct {
		Plaintext string `json:"plaintext"`
		Error     struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	status, err := d.ask(req, &out)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, refused(status, out.Error.Message)
	}
	return decodeShare(out.Plaintext)
}

// check tells whether the fields make credentials, in the order in which they are tried.
func (c *azureKeys) check() error {
	if _, err := c.credential(nil); err != nil && !errors.Is(err, errManaged) {
		return err
	}
	return nil
}

// errManaged tells of credentials that only the machine has.
var errManaged = errors.New("clientId alone means the managed identity of this machine, which the Secret cannot give; " +
	"add tenantId and clientSecret or clientCertificate")

func (c *azureKeys) credential(transport *http.Client) (azcore.TokenCredential, error) {
	o := azcore.ClientOptions{Cloud: cloud.AzurePublic}
	if transport != nil {
		o.Transport = transport
	}
	if c.Authority != "" {
		o.Cloud = cloud.Configuration{ActiveDirectoryAuthorityHost: c.Authority, Services: map[cloud.ServiceName]cloud.ServiceConfiguration{}}
	}
	var cred azcore.TokenCredential
	var err error
	switch {
	case c.TenantID != "" && c.ClientID != "" && c.ClientSecret != "":
		cred, err = azidentity.NewClientSecretCredential(c.TenantID, c.ClientID, c.ClientSecret, &azidentity.ClientSecretCredentialOptions{ClientOptions: o})
	case c.TenantID != "" && c.ClientID != "" && c.Certificate != "":
		certs, key, perr := azidentity.ParseCertificates([]byte(c.Certificate), []byte(c.Passphrase))
		if perr != nil {
			return nil, errors.New("clientCertificate is not a certificate with its key")
		}
		cred, err = azidentity.NewClientCertificateCredential(c.TenantID, c.ClientID, certs, key,
			&azidentity.ClientCertificateCredentialOptions{ClientOptions: o, SendCertificateChain: c.SendChain})
	case c.Tenant != "" && c.AppID != "" && c.Password != "":
		cred, err = azidentity.NewClientSecretCredential(c.Tenant, c.AppID, c.Password, &azidentity.ClientSecretCredentialOptions{ClientOptions: o})
	case c.ClientID != "":
		return nil, errManaged
	default:
		return nil, errors.New("it needs tenantId, clientId and clientSecret or clientCertificate; or tenant, appId and password")
	}
	if err != nil {
		return nil, errors.New("the tenant, the client or the authority is malformed")
	}
	return cred, nil
}

// azureCredential returns the credential, which keeps its tokens until they expire.
func (d *Decryptor) azureCredential() (azcore.TokenCredential, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.azure != nil {
		return d.azure, nil
	}
	var cred azcore.TokenCredential
	var err error
	switch {
	case d.keys.azure != nil:
		c := d.keys.azure
		cred, err = c.credential(d.http)
		if errors.Is(err, errManaged) && d.environment {
			cred, err = azidentity.NewManagedIdentityCredential(&azidentity.ManagedIdentityCredentialOptions{ID: azidentity.ClientID(c.ClientID)})
		}
	case d.identity != nil:
		cred = identityCredential{d.identity}
	default:
		cred, err = azidentity.NewDefaultAzureCredential(nil)
	}
	if err != nil {
		return nil, err
	}
	d.azure = cred
	return cred, nil
}

// unwrapAzure asks Azure Key Vault. Its client gives a token only to vaults of Azure.
func (d *Decryptor) unwrapAzure(ctx context.Context, k masterKey) ([]byte, error) {
	if d.keys.azure == nil && d.identity == nil && !d.environment {
		return nil, errNotHere
	}
	if !strings.HasPrefix(k.raw.VaultURL, "https://") {
		return nil, errors.New("the address of the vault is not an https URL")
	}
	blob, err := base64.RawURLEncoding.DecodeString(k.enc)
	if err != nil {
		return nil, errors.New("its encrypted data key is malformed")
	}
	cred, err := d.azureCredential()
	if err != nil {
		return nil, err
	}
	c, err := azkeys.NewClient(k.raw.VaultURL, cred, &azkeys.ClientOptions{ClientOptions: azcore.ClientOptions{Transport: d.http}})
	if err != nil {
		return nil, errors.New("the address of the vault is not a URL")
	}
	alg := azkeys.EncryptionAlgorithmRSAOAEP256
	out, err := c.Decrypt(ctx, k.raw.Name, k.raw.Version, azkeys.KeyOperationParameters{Algorithm: &alg, Value: blob}, nil)
	if err != nil {
		var r *azcore.ResponseError
		var a *azidentity.AuthenticationFailedError
		var i *identityError
		switch {
		case errors.As(err, &i):
			return nil, i
		case errors.As(err, &r):
			return nil, refused(r.StatusCode, r.ErrorCode)
		case errors.As(err, &a):
			return nil, errors.New("get a token: refused")
		}
		return nil, noAnswer(err)
	}
	return out.Result, nil
}

// identityError says that the account of WithIdentity was given no token.
type identityError struct{ text string }

func (e *identityError) Error() string { return e.text }

// refused says why: mostly it is an annotation that the account lacks.
func (id *Identity) refused(err error) error {
	return &identityError{fmt.Sprintf("get a token as %s: %s", id.Name, shownUpTo(400, err.Error()))}
}

// identityCredential marks the errors of an account, which the client of Azure wraps.
type identityCredential struct{ *Identity }

func (c identityCredential) GetToken(ctx context.Context, o policy.TokenRequestOptions) (azcore.AccessToken, error) {
	token, err := c.Azure.GetToken(ctx, o)
	if err != nil {
		return token, c.refused(err)
	}
	return token, nil
}
