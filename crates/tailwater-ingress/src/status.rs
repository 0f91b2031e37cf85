//! The status of objects: the addresses under which they are reached, and conditions of the Gateway API. One of several controllers writes it, the holder of a Lease.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde_json::{Value, json};

use crate::cluster::client::{ApiClient, ApiError};
use crate::cluster::object::{Object as _, ObjectName, Service};
use crate::cluster::store::Store;
use crate::gateway_status;
use crate::journal::{Journal, timestamp};
use crate::server::applier::Verdicts;
use crate::site::selected;
use crate::site::settings::SiteOptions;

/// Time between two looks at the Lease and the objects.
const ROUND: Duration = Duration::from_secs(5);
/// Time after which a Lease that was not renewed may be taken.
const LEASE_TIME: Duration = Duration::from_secs(20);

/// Addresses of the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Published {
    /// Addresses of a service.
    Service(ObjectName),
    /// These.
    Addresses(Vec<String>),
}

/// Lease for which controllers compete.
pub struct Election {
    client: ApiClient,
    path: String,
    name: String,
    identity: String,
    /// Version of the Lease of somebody else, and since when we have seen it.
    other_lease: Option<(String, Instant)>,
}

impl Election {
    /// Competes for a Lease as `identity`.
    pub fn new(client: ApiClient, lease: &ObjectName, identity: String) -> Self {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", lease.namespace);
        Self { client, path, name: lease.name.clone(), identity, other_lease: None }
    }

    /// Renews the Lease, or takes it if nobody else has it. Returns true for its holder.
    ///
    /// # Errors
    /// The API server does not answer, or somebody else was faster.
    pub fn round(&mut self) -> Result<bool, ApiError> {
        let target = format!("{}/{}", self.path, self.name);
        let lease = match self.client.request("GET", &target, None) {
            Ok(lease) => lease,
            Err(ApiError::Status(404, _)) => {
                let lease = self.lease(&Value::Null);
                self.client.request("POST", &self.path, Some(("application/json", &lease)))?;
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let version = lease["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        if holder != self.identity && !holder.is_empty() {
            // Clocks of others are not trusted: the Lease is free when it has not changed for its time on ours.
            match &self.other_lease {
                Some((text, since)) if *text == version => {
                    if since.elapsed() < LEASE_TIME {
                        return Ok(false);
                    }
                }
                _ => {
                    self.other_lease = Some((version, Instant::now()));
                    return Ok(false);
                }
            }
        }
        let lease = self.lease(&lease);
        self.client.request("PUT", &target, Some(("application/json", &lease)))?;
        self.other_lease = None;
        Ok(true)
    }

    fn lease(&self, before: &Value) -> Value {
        let now = timestamp(SystemTime::now()).replace('Z', ".000000Z");
        let version = &before["metadata"]["resourceVersion"];
        let is_renewed = before["spec"]["holderIdentity"] == self.identity;
        let acquired = if is_renewed { before["spec"]["acquireTime"].clone() } else { json!(now) };
        let mut lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name},
            "spec": {
                "holderIdentity": self.identity, "leaseDurationSeconds": LEASE_TIME.as_secs(),
                "acquireTime": acquired, "renewTime": now,
            },
        });
        if version.is_string() {
            lease["metadata"]["resourceVersion"] = version.clone();
        }
        lease
    }
}

/// Writes the status of objects until the program ends. Without addresses, that of Ingress objects is left alone.
pub fn run(
    client: &ApiClient,
    store: &Arc<Store>,
    journal: &Journal,
    options: &SiteOptions,
    mut election: Election,
    published: Option<&Published>,
    verdicts: &Verdicts,
) {
    let mut was_leader = false;
    loop {
        match election.round() {
            Ok(is_leader) => {
                if is_leader != was_leader {
                    journal.line(if is_leader {
                        "this controller writes the status of objects"
                    } else {
                        "another controller writes the status"
                    });
                }
                was_leader = is_leader;
                if is_leader && let Err(error) = update(client, store, options, published, verdicts) {
                    journal.line(&format!("status of objects: {error}"));
                }
            }
            Err(error) => {
                was_leader = false;
                journal.line(&format!("lease: {error}"));
            }
        }
        if store.pause(ROUND) {
            return;
        }
    }
}

fn update(
    client: &ApiClient,
    store: &Store,
    options: &SiteOptions,
    published: Option<&Published>,
    verdicts: &Verdicts,
) -> Result<(), ApiError> {
    let addresses = match published {
        None => Vec::new(),
        Some(Published::Addresses(addresses)) => addresses.clone(),
        Some(Published::Service(name)) => {
            let target = format!("/api/v1/namespaces/{}/services/{}", name.namespace, name.name);
            let json = client.request("GET", &target, None)?;
            Service::read(&json).ok_or(ApiError::Malformed)?.addresses
        }
    };
    let snapshot = store.snapshot();
    if store.is_complete() {
        gateway_status::update(client, &snapshot, options, &addresses, verdicts)?;
    }
    for ingress in selected(&snapshot, options) {
        if published.is_none() || ingress.addresses == addresses {
            continue;
        }
        let list: Vec<_> = addresses
            .iter()
            .map(|address| match address.parse::<std::net::IpAddr>() {
                Ok(ip) => json!({ "ip": ip.to_string() }),
                Err(_) => json!({ "hostname": address }),
            })
            .collect();
        let patch = json!({ "status": { "loadBalancer": { "ingress": list } } });
        let ObjectName { namespace, name } = &ingress.metadata.name;
        let target = format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/ingresses/{name}/status");
        match client.request("PATCH", &target, Some(("application/merge-patch+json", &patch))) {
            // The Ingress was removed meanwhile (404).
            Ok(_) | Err(ApiError::Status(404, _)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
