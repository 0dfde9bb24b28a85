//! Where in which object store: `s3://BUCKET/PREFIX`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{BackoffConfig, ClientConfigKey, RetryConfig};
use outlive_base::{Code, Entity, Error, Result};

use crate::client::Client;

/// How the names of variables begin that credentials and endpoints are taken from: whoever starts
/// agents on other machines hands them on.
pub const VARIABLES: [&str; 4] = ["AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_"];

/// Of one attempt at a request, unless `AWS_TIMEOUT` and its like say otherwise: a part of 8 MiB
/// takes as long at 280 KiB a second.
const REQUEST: &str = "30 seconds";
/// Of a connection, likewise `AWS_CONNECT_TIMEOUT`.
const CONNECT: &str = "5 seconds";
/// Of a request with its repetitions: what is busy (503, 429) or breaks is asked again, with pauses
/// that grow.
const REPEATED: Duration = Duration::from_secs(20);
const REPEATED_MAX: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Provider {
    Amazon,
    Google,
    Azure,
}

/// The address of a directory in an object store. Holds no secret, and is shown as it was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectStoreUrl {
    url: String,
    provider: Provider,
    prefix: String,
}

impl FromStr for ObjectStoreUrl {
    type Err = Error;

    fn from_str(text: &str) -> Result<ObjectStoreUrl> {
        let refuse = |reason: &str| {
            Error::new(
                Code::InvalidArgument,
                Entity::Option("object-store".into()),
                format!("{text}: {reason}"),
                "write for example s3://BUCKET/DIRECTORY, gs://BUCKET or az://CONTAINER/DIRECTORY",
            )
        };
        let (scheme, rest) = text
            .split_once("://")
            .ok_or_else(|| refuse("no address of an object store"))?;
        let provider = match scheme {
            "s3" => Provider::Amazon,
            "gs" => Provider::Google,
            "az" => Provider::Azure,
            _ => return Err(refuse("no kind of object store that is known here")),
        };
        // What stands before an @ would be shown wherever the address is.
        if rest.contains(['@', '?', '#']) {
            return Err(refuse(
                "holds more than bucket and directory; credentials belong in the environment",
            ));
        }
        let rest = rest.trim_end_matches('/');
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(refuse("names no bucket"));
        }
        let sound = Path::parse(prefix).is_ok_and(|path| path.as_ref() == prefix);
        if !sound || bucket.contains(char::is_whitespace) {
            return Err(refuse("not a name of a bucket and a directory"));
        }
        Ok(ObjectStoreUrl {
            url: format!("{scheme}://{rest}"),
            provider,
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for ObjectStoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: REPEATED_MAX,
        retry_timeout: REPEATED,
    }
}

/// What the environment leaves open.
fn bounds(prefix: &str) -> impl Iterator<Item = (ClientConfigKey, &'static str)> {
    let all = [
        ("TIMEOUT", ClientConfigKey::Timeout, REQUEST),
        ("CONNECT_TIMEOUT", ClientConfigKey::ConnectTimeout, CONNECT),
    ];
    let is_open = move |name: &str| std::env::var_os(format!("{prefix}{name}")).is_none();
    let is_open: Vec<bool> = all.iter().map(|it| is_open(it.0)).collect();
    all.into_iter()
        .zip(is_open)
        .filter_map(|((_, key, value), open)| open.then_some((key, value)))
}

/// The server of an endpoint's address: without what may be secret, and written in one way.
fn server_of(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // What stands before the last @ is a name and a password.
    let host = rest.rsplit('@').next().unwrap_or_default();
    let host = host.to_ascii_lowercase();
    let default = match scheme.to_ascii_lowercase().as_str() {
        "http" => ":80",
        _ => ":443",
    };
    let host = host.strip_suffix(default).unwrap_or(&host);
    host.trim_end_matches('.').to_owned()
}

impl ObjectStoreUrl {
    /// The bucket, for all who use it: `s3://BUCKET`, and where that alone does not say which,
    /// with the server or account before it, as the environment of this process has it. Holds no
    /// directory and no secret.
    pub fn bucket(&self) -> String {
        let server = match self.provider {
            Provider::Amazon => {
                let builder = AmazonS3Builder::from_env();
                let endpoint = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
                let server = endpoint.map(|endpoint| server_of(&endpoint));
                // The provider's own, at which a bucket's name is the only one.
                server.filter(|server| !server.ends_with(".amazonaws.com"))
            }
            Provider::Google => {
                let builder = GoogleCloudStorageBuilder::from_env();
                let endpoint = builder.get_config_value(&GoogleConfigKey::BaseUrl);
                let server = endpoint.map(|endpoint| server_of(&endpoint));
                server.filter(|server| !server.ends_with(".googleapis.com"))
            }
            Provider::Azure => {
                let builder = MicrosoftAzureBuilder::from_env();
                let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
                let account = builder.get_config_value(&AzureConfigKey::AccountName);
                let server = endpoint.map(|endpoint| server_of(&endpoint));
                server.or(account.map(|account| account.to_ascii_lowercase()))
            }
        };
        self.bucket_at(server.as_deref())
    }

    fn bucket_at(&self, server: Option<&str>) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or_default();
        let bucket = rest.split('/').next().unwrap_or_default();
        match server {
            Some(server) => format!("{scheme}://{server}/{bucket}"),
            None => format!("{scheme}://{bucket}"),
        }
    }

    /// In the bucket, where jobs have their directories.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A client with the credentials of this process's environment.
    pub(crate) fn connect(&self) -> Result<Client> {
        // Once in a process; who comes second finds it done.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = match self.provider {
            Provider::Amazon => {
                let mut builder = AmazonS3Builder::from_env().with_url(&self.url);
                for (key, value) in bounds("AWS_") {
                    builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
                }
                builder.with_retry(retry()).build().map(Client::of)
            }
            Provider::Google => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_url(&self.url);
                for (key, value) in bounds("GOOGLE_") {
                    builder = builder.with_config(GoogleConfigKey::Client(key), value);
                }
                builder.with_retry(retry()).build().map(Client::of)
            }
            Provider::Azure => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_url(&self.url);
                for (key, value) in bounds("AZURE_") {
                    builder = builder.with_config(AzureConfigKey::Client(key), value);
                }
                builder.with_retry(retry()).build().map(Client::of)
            }
        };
        client.map_err(|error| {
            Error::new(
                Code::Config,
                Entity::File(self.url.clone()),
                crate::error::io_error(&error).to_string(),
                self.remedy(),
            )
        })
    }

    /// Where to look if the store refuses.
    pub(crate) const fn remedy(&self) -> &'static str {
        match self.provider {
            Provider::Amazon => {
                "check the bucket's name, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION \
                 and, for a server of your own, AWS_ENDPOINT_URL and AWS_ALLOW_HTTP"
            }
            Provider::Google => "check the bucket's name and GOOGLE_APPLICATION_CREDENTIALS",
            Provider::Azure => {
                "check the container's name, AZURE_STORAGE_ACCOUNT_NAME and \
                 AZURE_STORAGE_ACCOUNT_KEY"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_the_same_for_all_who_use_it_and_shows_no_secret() {
        for (text, bucket) in [
            ("s3://b", "s3://b"),
            ("s3://b/", "s3://b"),
            ("s3://b/of/anna/", "s3://b"),
            ("gs://b/x", "gs://b"),
        ] {
            let place: ObjectStoreUrl = text.parse().unwrap();
            assert_eq!(place.bucket_at(None), bucket);
            let at = place.bucket_at(Some("minio:9000"));
            assert_eq!(at, bucket.replace("://", "://minio:9000/"));
        }
        for (endpoint, server) in [
            ("http://minio:9000", "minio:9000"),
            ("http://Minio:9000/", "minio:9000"),
            ("https://key:secret@minio:9000/path?token=x", "minio:9000"),
            ("https://a@b:secret@minio.example.:443", "minio.example"),
            ("http://minio:80/#x", "minio"),
            ("minio", "minio"),
            ("", ""),
            ("https://[::1]:9000", "[::1]:9000"),
        ] {
            assert_eq!(server_of(endpoint), server, "{endpoint}");
        }
    }

    #[test]
    fn places_are_read_and_others_refused() {
        for (text, prefix) in [
            ("s3://bucket", ""),
            ("s3://bucket/", ""),
            ("gs://b/outlive", "outlive"),
            ("az://c/a/b/", "a/b"),
        ] {
            let place: ObjectStoreUrl = text.parse().unwrap();
            assert_eq!(place.prefix(), prefix);
            assert_eq!(place.to_string(), text.trim_end_matches('/'));
        }
        for text in [
            "",
            "s3",
            "s3:/b",
            "s3://",
            "s3:///x",
            "ftp://b/x",
            "/srv/x",
            "s3://k:s@b/x",
            "s3://b/x?sig=1",
            "s3://b/../x",
            "s3://b//x",
            "s3://b/a#b",
            "s3://a b/x",
        ] {
            let error = text.parse::<ObjectStoreUrl>().unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{text}");
        }
    }
}
