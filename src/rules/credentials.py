"""Which parts of a request count as a credential of the client, and which headers only describe who sent it.

Names are compared with "_" read as "-": CGI and WSGI servers see no difference between the two.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rules.request import Request

__all__ = [
    "CORRELATION_HEADERS",
    "CREDENTIAL_HEADERS",
    "CREDENTIAL_QUERY",
    "PROVENANCE_HEADERS",
    "Credential",
    "credentials_of",
    "fold_name",
    "is_credential_header",
    "is_credential_query",
]

CREDENTIAL_HEADERS = frozenset(
    {
        "authorization",
        "proxy-authorization",
        "cookie",
        "cookie2",
        "api-key",
        "apikey",
        "api-token",
        "auth-token",
        "access-token",
        "private-token",  # GitLab
        "job-token",
        "deploy-token",
        "x-api-key",  # Anthropic and many others
        "x-apikey",
        "x-api-token",
        "x-auth",
        "x-auth-key",  # Cloudflare
        "x-auth-email",
        "x-auth-token",  # OpenStack
        "x-auth-user-service-key",
        "x-subject-token",
        "x-service-token",
        "x-access-token",
        "x-authorization",
        "x-forwarded-access-token",
        "x-id-token",
        "x-csrf-token",
        "x-xsrf-token",
        "x-goog-api-key",
        "x-goog-iam-authorization-token",
        "x-serverless-authorization",
        "x-amz-security-token",
        "x-amz-s3session-token",
        "x-aws-ec2-metadata-token",
        "x-ms-authorization-auxiliary",
        "x-functions-key",  # Azure
        "ocp-apim-subscription-key",
        "x-vault-token",
        "x-consul-token",
        "x-nomad-token",
        "x-gitlab-token",
        "x-github-token",
        "x-github-enterprise-token",
        "x-registry-auth",
        "x-registry-config",
        "x-jfrog-art-api",
        "x-nuget-apikey",
        "x-rapidapi-key",
        "x-subscription-token",  # Brave search
        "x-figma-token",
        "x-trackertoken",
        "x-shopify-access-token",
        "x-postmark-server-token",
        "x-sentry-auth",
        "x-honeycomb-team",
        "x-algolia-api-key",
        "x-typesense-api-key",
        "x-insert-key",
        "dd-api-key",
        "dd-application-key",
        "circle-token",
        "fastly-key",
        "npm-otp",
        "x-otp",
        "x-github-otp",
        "x-tableau-auth",
        "dpop",  # RFC 9449
        "signature",  # RFC 9421
        "signature-input",
    }
)

CREDENTIAL_QUERY = frozenset(
    {
        "access-token",
        "access-key",
        "accesskey",
        "api-key",
        "api-token",
        "apikey",
        "apitoken",
        "auth",
        "auth-token",
        "authorization",
        "awsaccesskeyid",  # AWS signature version 2
        "bearer-token",
        "client-secret",
        "credential",
        "credentials",
        "deploy-token",
        "googleaccessid",
        "id-token",
        "job-token",
        "key",
        "key-pair-id",  # CloudFront
        "oauth-signature",
        "oauth-token",
        "passwd",
        "password",
        "private-token",
        "refresh-token",
        "secret",
        "session-token",
        "sessionid",
        "sig",  # Azure shared access
        "signature",
        "token",
        "x-api-key",
        "x-amz-credential",
        "x-amz-security-token",
        "x-amz-signature",
        "x-goog-credential",
        "x-goog-signature",
        "x-ms-signature",
    }
)

# Ours alone to set: an auditor joins the ledger with the target's records by them.
CORRELATION_HEADERS = frozenset(
    {
        "baggage",
        "correlation-id",
        "credgate-run",
        "credgate-verdict",
        "idempotency-key",
        "request-id",
        "traceparent",
        "tracestate",
        "x-amzn-trace-id",
        "x-client-request-id",
        "x-cloud-trace-context",
        "x-correlation-id",
        "x-goog-request-reason",
        "x-idempotency-key",
        "x-ms-client-request-id",
        "x-request-id",
    }
)

# Written by proxies about the sender, or in place of the host: from a client they would be lies in the target's log.
PROVENANCE_HEADERS = frozenset(
    {
        "cf-connecting-ip",
        "client-ip",
        "fastly-client-ip",
        "forwarded",
        "true-client-ip",
        "via",
        "x-client-ip",
        "x-cluster-client-ip",
        "x-forwarded",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-prefix",
        "x-forwarded-proto",
        "x-forwarded-scheme",
        "x-forwarded-server",
        "x-host",
        "x-original-host",
        "x-real-ip",
        "x-remote-ip",
        "x-remote-user",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """Where a client's credential stands: `place` "header" or "query", and the folded name. Never its value."""

    place: str
    name: str


@lru_cache(maxsize=256)  # the few names that a run's clients send, asked for several times a request
def fold_name(name: bytes) -> str:
    """A header's name as the tables spell it."""
    return name.decode("latin-1").lower().replace("_", "-")


def is_credential_header(name: bytes) -> bool:
    """Whether a header of this name is a credential."""
    return fold_name(name) in CREDENTIAL_HEADERS


def is_credential_query(name: str) -> bool:
    """Whether a query parameter of this (decoded) name is a credential."""
    return name.lower().replace("_", "-") in CREDENTIAL_QUERY


def credentials_of(request: Request) -> tuple[Credential, ...]:
    """Every credential that the client put into headers (cookies included) and query, in order."""
    headers = (Credential(place="header", name=fold_name(n)) for n, _ in request.headers if is_credential_header(n))
    return (*headers, *_in_query(request.query_names))


def _in_query(names: Iterable[str]) -> Iterable[Credential]:
    return (Credential(place="query", name=name) for name in names if is_credential_query(name))
