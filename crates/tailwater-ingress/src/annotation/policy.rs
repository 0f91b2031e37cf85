//! The annotations of one Ingress, read and checked: the lines that they add to the configuration.

use std::collections::BTreeSet;

use super::table::{self, Mapping, PREFIX};
use super::value;
use crate::cluster::object::{ConfigMap, Ingress, ObjectName, Secret};
use crate::cluster::store::Snapshot;
use crate::site::files::{Files, digest};
use crate::site::settings::SiteOptions;

/// Protocol of the endpoints of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// HTTP.
    #[default]
    Http,
    /// HTTP over TLS.
    Https,
    /// gRPC.
    Grpc,
    /// gRPC over TLS.
    Grpcs,
    /// FastCGI.
    Fastcgi,
}

/// Lines of the configuration for an Ingress.
#[derive(Debug, Clone, Default)]
pub struct Policy {
    /// Name of the Ingress.
    pub owner: ObjectName,
    /// Text that no other Ingress has, for names of variables and zones.
    pub id: String,
    /// Annotations without effect, and why.
    pub problems: Vec<String>,
    /// Reason why the locations must not be served.
    pub denied: Option<String>,
    /// Lines of the block `http`.
    pub http: Vec<String>,
    /// Lines of the servers of its hosts.
    pub server: Vec<String>,
    /// Internal locations of these servers.
    pub internal: Vec<String>,
    /// Lines of its locations.
    pub location: Vec<String>,
    /// Lines of its locations that go before all others: redirects.
    pub first: Vec<String>,
    /// Lines `add_header`, which the blocks `if` repeat.
    pub fields: Vec<String>,
    /// Fields of requests to endpoints, which replace those of all locations by name.
    pub request_fields: Vec<(String, String)>,
    /// Lines of upstream groups.
    pub group: Vec<String>,
    /// Protocol of endpoints.
    pub protocol: Protocol,
    /// Target of rewrites, as a word.
    pub rewrite: Option<String>,
    /// Paths are regular expressions.
    pub use_regex: bool,
    /// Response to all requests.
    pub redirect: Option<(u16, String)>,
    /// Response to `/`, as a word.
    pub app_root: Option<String>,
    /// Redirect to HTTPS; with hosts that have a certificate.
    pub ssl_redirect: Option<bool>,
    /// Redirect to HTTPS always.
    pub force_ssl_redirect: bool,
    /// Requests go to the address of the service.
    pub service_upstream: bool,
    /// Service of requests when there are no endpoints.
    pub default_backend: Option<String>,
    /// Other names of the hosts.
    pub aliases: Vec<String>,
    /// Redirect from or to the name with `www.`.
    pub www_redirect: bool,
    /// Statuses of endpoints whose responses the default backend makes.
    pub error_statuses: Vec<u16>,
    /// Client certificates are asked for.
    pub has_client_tls: bool,
    /// TLS is not decrypted, but passed on to the endpoints.
    pub passthrough: bool,
}

/// Reads annotations.
pub(super) struct Reader<'a> {
    pub(super) ingress: &'a Ingress,
    pub(super) snapshot: &'a Snapshot,
    pub(super) options: &'a SiteOptions,
    pub(super) files: &'a mut Files,
    pub(super) policy: Policy,
}

impl Policy {
    /// Reads the annotations of an Ingress. Files that they need go to `files`.
    pub fn read(ingress: &Ingress, snapshot: &Snapshot, options: &SiteOptions, files: &mut Files) -> Self {
        let owner = ingress.metadata.name.clone();
        let id: String = digest(owner.to_string().as_bytes()).chars().take(12).collect();
        let policy = Self { owner, id, ..Self::default() };
        let mut reader = Reader { ingress, snapshot, options, files, policy };
        reader.read_table();
        reader.read_redirects();
        reader.read_rewrite();
        reader.read_names();
        reader.read_upstream();
        reader.read_fields();
        reader.read_networks();
        reader.read_limits();
        reader.read_global_limit();
        reader.read_basic_auth();
        reader.read_external_auth();
        reader.read_client_tls();
        reader.read_cors();
        reader.read_mirror();
        reader.read_upstream_tls();
        reader.read_tracing();
        reader.read_firewall();
        reader.policy.passthrough = reader.required("ssl-passthrough", value::switch).unwrap_or_default();
        reader.policy
    }

    /// Notes that the locations must not be served.
    pub(crate) fn deny(&mut self, reason: String) {
        self.problems.push(format!("{reason}; the paths are answered with 503"));
        self.denied.get_or_insert(reason);
    }
}

impl<'a> Reader<'a> {
    /// Value of an annotation; empty ones count as missing.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        let value = self.ingress.metadata.annotations.get(&format!("{PREFIX}{name}"))?;
        Some(&**value).filter(|value| !value.trim().is_empty())
    }

    /// Value that is true or false. Others are a problem, and count as missing.
    pub(super) fn switch(&mut self, name: &str) -> Option<bool> {
        let text = self.text(name)?;
        let value = value::switch(text);
        if value.is_none() {
            self.invalid(name);
        }
        value
    }

    /// Value that is a number.
    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        let text = self.text(name)?;
        let value = text.trim().parse().ok().filter(|number| *number <= 1_000_000_000);
        if value.is_none() {
            self.invalid(name);
        }
        value
    }

    /// Value made by `check`; a text it refuses is a problem, and counts as missing.
    pub(super) fn checked<T>(&mut self, name: &str, check: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = check(self.text(name)?.trim());
        if value.is_none() {
            self.invalid(name);
        }
        value
    }

    /// As [`Reader::checked`] for a value that protects something: without it, the locations are not served.
    pub(super) fn required<T>(&mut self, name: &str, check: impl Fn(&str) -> Option<T>) -> Option<T> {
        let value = check(self.text(name)?.trim());
        if value.is_none() {
            self.policy.deny(format!("annotation \"{name}\" has an invalid value"));
        }
        value
    }

    pub(super) fn invalid(&mut self, name: &str) {
        self.policy.problems.push(format!("annotation \"{name}\" has an invalid value and no effect"));
    }

    /// Secret of a reference; those of other namespaces only if that is allowed.
    pub(super) fn secret(&self, reference: &str) -> Result<&'a Secret, String> {
        let name = self.named(reference)?;
        self.snapshot
            .secrets
            .get(&name)
            .map(|found_secret| &**found_secret)
            .ok_or_else(|| format!("secret \"{name}\" is missing"))
    }

    /// Map of a reference.
    pub(super) fn config_map(&self, reference: &str) -> Result<&'a ConfigMap, String> {
        let name = self.named(reference)?;
        let found_config_map =
            self.snapshot.config_maps.get(&name).map(|found_config_map| &**found_config_map);
        found_config_map.ok_or_else(|| format!("config map \"{name}\" is missing"))
    }

    fn named(&self, reference: &str) -> Result<ObjectName, String> {
        let own = &self.policy.owner.namespace;
        let name =
            ObjectName::reference(reference.trim(), own).ok_or_else(|| "no name of an object".to_owned())?;
        if name.namespace == *own || self.options.allow_cross_namespace {
            Ok(name)
        } else {
            Err(format!("\"{name}\" is in another namespace (--allow-cross-namespace)"))
        }
    }

    /// A snippet, if they are allowed. Braces have to be paired, so that it stays in its block.
    pub(super) fn snippet(&mut self, name: &str) -> Option<String> {
        let text = self.text(name)?;
        if !self.options.allow_snippets {
            self.policy
                .problems
                .push(format!("annotation \"{name}\" has no effect without --allow-snippets"));
            return None;
        }
        let mut depth = 0_i32;
        for line in text.lines() {
            let code = line.split('#').next().unwrap_or_default();
            for c in code.chars() {
                depth += i32::from(c == '{') - i32::from(c == '}');
                if depth < 0 {
                    self.invalid(name);
                    return None;
                }
            }
        }
        if depth != 0 {
            self.invalid(name);
            return None;
        }
        Some(text.to_owned())
    }

    /// Annotations that are one directive, and those that have no effect.
    fn read_table(&mut self) {
        let names: BTreeSet<_> = self.ingress.metadata.annotations.keys().cloned().collect();
        for full in names {
            let Some(name) = full.strip_prefix(PREFIX) else { continue };
            let Some(annotation) = table::find(name) else {
                self.policy.problems.push(format!("annotation \"{name}\" is unknown and has no effect"));
                continue;
            };
            match annotation.mapping {
                Mapping::Location(directive, kind) => {
                    // Ignoring an invalid value of one of these annotations would weaken a protection: the certificate
                    // would not be verified, or one of two access rules would suffice or be missing.
                    let protects = matches!(name, "proxy-ssl-verify" | "satisfy");
                    let words = if protects {
                        self.required(name, |text| kind.words(text))
                    } else {
                        self.checked(name, |text| kind.words(text))
                    };
                    if let Some(words) = words {
                        self.policy.location.push(format!("{directive} {words};"));
                    }
                }
                Mapping::Server(directive, kind) => {
                    if let Some(words) = self.checked(name, |text| kind.words(text)) {
                        self.policy.server.push(format!("{directive} {words};"));
                    }
                }
                Mapping::Ignored(reason) => {
                    self.policy.problems.push(format!("annotation \"{name}\" has no effect: {reason}"));
                }
                Mapping::Built(_) | Mapping::Snippet(_) => {}
            }
        }
        if let Some(text) = self.snippet("configuration-snippet") {
            self.policy.location.extend(text.lines().map(str::to_owned));
        }
        if let Some(text) = self.snippet("server-snippet") {
            self.policy.server.extend(text.lines().map(str::to_owned));
        }
    }
}
