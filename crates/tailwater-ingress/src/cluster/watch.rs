//! One thread for each kind of objects: a list, then a watch from its version on, again and again.
//!
//! ```text
//! list ──► watch ──► end of the watch, or connection lost: watch again from the last version
//!   ▲        └─────► 410 Gone: the server has forgotten that version
//!   └────────────────┘ every failure waits longer than the one before
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{ApiClient, ApiError, Event};
use super::gateway::{
    GROUP, Gateway, GatewayClass, GrpcRoute, HttpRoute, Namespace, ReferenceGrant, TcpRoute, TlsRoute,
    UdpRoute,
};
use super::object::{ConfigMap, EndpointSlice, Ingress, IngressClass, ObjectName, Secret, Service};
use super::store::{Kept, Objects, Store};
use crate::journal::Journal;

/// Shortest and longest time between two attempts.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// Time after which the server ends a watch, so that a connection that broke without notice is found.
const WATCH_TIME: Duration = Duration::from_secs(240);

/// Time after which a kind is looked for again that the API server does not have.
const ABSENT: Duration = Duration::from_secs(60);

/// Kind of objects that is watched.
pub struct Resource {
    /// Group of the API, empty for the oldest one.
    pub group: &'static str,
    /// Name in paths and in rights.
    pub plural: &'static str,
    /// Objects belong to namespaces.
    pub is_namespaced: bool,
    /// Versions of the API, the best one first.
    versions: &'static [&'static str],
    /// The program works without this kind: a cluster may not have it, or the program may not read it.
    pub is_optional: bool,
    /// Further arguments of requests, beginning with `&`.
    query: &'static str,
    follow: fn(Follower),
}

/// All kinds that are watched. Rights of the program are the same list: `packaging/kubernetes/ingress.yaml`.
pub const RESOURCES: &[Resource] = &[
    resource::<Ingress>("networking.k8s.io", "ingresses", true, ""),
    resource::<IngressClass>("networking.k8s.io", "ingressclasses", false, ""),
    resource::<Service>("", "services", true, ""),
    resource::<EndpointSlice>("discovery.k8s.io", "endpointslices", true, ""),
    // Releases of Helm and tokens are never used, and large.
    resource::<Secret>(
        "",
        "secrets",
        true,
        "&fieldSelector=type!%3Dhelm.sh%2Frelease.v1%2Ctype!%3Dkubernetes.io%2Fservice-account-token",
    ),
    resource::<ConfigMap>("", "configmaps", true, ""),
    optional::<Namespace>("", "namespaces", false, &["v1"]),
    optional::<GatewayClass>(GROUP, "gatewayclasses", false, &["v1"]),
    optional::<Gateway>(GROUP, "gateways", true, &["v1"]),
    optional::<HttpRoute>(GROUP, "httproutes", true, &["v1"]),
    optional::<GrpcRoute>(GROUP, "grpcroutes", true, &["v1"]),
    optional::<TlsRoute>(GROUP, "tlsroutes", true, &["v1", "v1alpha3", "v1alpha2"]),
    optional::<TcpRoute>(GROUP, "tcproutes", true, &["v1", "v1alpha2"]),
    optional::<UdpRoute>(GROUP, "udproutes", true, &["v1", "v1alpha2"]),
    optional::<ReferenceGrant>(GROUP, "referencegrants", true, &["v1", "v1beta1"]),
];

const fn optional<T: Kept>(
    group: &'static str,
    plural: &'static str,
    is_namespaced: bool,
    versions: &'static [&'static str],
) -> Resource {
    let follow = Follower::run::<T>;
    Resource { group, plural, is_namespaced, versions, is_optional: true, query: "", follow }
}

const fn resource<T: Kept>(
    group: &'static str,
    plural: &'static str,
    is_namespaced: bool,
    query: &'static str,
) -> Resource {
    let follow = Follower::run::<T>;
    Resource { group, plural, is_namespaced, versions: &["v1"], is_optional: false, query, follow }
}

impl Resource {
    /// Paths of all objects, or of those of one namespace: one for each version.
    pub fn paths(&self, namespace: Option<&str>) -> Vec<String> {
        let path = |version: &&str| {
            let group = match self.group {
                "" => format!("/api/{version}"),
                group => format!("/apis/{group}/{version}"),
            };
            match namespace.filter(|_| self.is_namespaced) {
                Some(namespace) => format!("{group}/namespaces/{namespace}/{}", self.plural),
                None => format!("{group}/{}", self.plural),
            }
        };
        self.versions.iter().map(path).collect()
    }
}

/// Starts a thread for each kind.
///
/// # Errors
/// There is no thread left.
pub fn start(
    client: &ApiClient,
    store: &Arc<Store>,
    journal: &Arc<Journal>,
    namespace: Option<&str>,
) -> std::io::Result<()> {
    for resource in RESOURCES {
        let follower = Follower {
            client: client.clone(),
            store: Arc::clone(store),
            journal: Arc::clone(journal),
            paths: resource.paths(namespace),
            path: String::new(),
            is_optional: resource.is_optional,
            is_absent: false,
            query: resource.query,
            is_first: true,
        };
        let follow = resource.follow;
        std::thread::Builder::new()
            .name(format!("watch-{}", resource.plural))
            .spawn(move || follow(follower))?;
    }
    Ok(())
}

/// Thread that follows the objects of one kind.
struct Follower {
    client: ApiClient,
    store: Arc<Store>,
    journal: Arc<Journal>,
    paths: Vec<String>,
    /// The one that the API server has.
    path: String,
    is_optional: bool,
    /// The API server does not have this kind; that is noted already.
    is_absent: bool,
    query: &'static str,
    is_first: bool,
}

impl Follower {
    fn run<T: Kept>(mut self) {
        let mut wait = BACKOFF.0;
        let mut version: Option<String> = None;
        while !self.store.ends() {
            let began = Instant::now();
            let result = match &mut version {
                None => self.list::<T>().map(|listed| version = Some(listed)),
                Some(version) => self.watch::<T>(version),
            };
            match result {
                Ok(()) => {
                    // A watch that ends at once is no progress.
                    if version.is_some() && began.elapsed() > BACKOFF.0 {
                        wait = BACKOFF.0;
                    }
                    continue;
                }
                Err(error) if error.is_gone() => {
                    self.journal.line(&format!(
                        "{}: old versions are not available any more, listing again",
                        self.path
                    ));
                    version = None;
                }
                Err(ApiError::Status(status @ (403 | 404), _)) if self.is_optional => {
                    version = None;
                    self.store.replace(Objects::<T>::new(), std::mem::take(&mut self.is_first));
                    if !std::mem::replace(&mut self.is_absent, true) {
                        self.journal.line(&format!("{}: status {status}: served without them", self.path));
                    }
                    if self.store.pause(ABSENT) {
                        return;
                    }
                    continue;
                }
                Err(error) => {
                    if matches!(error, ApiError::Status(400..=499, _)) {
                        version = None;
                    }
                    self.journal.line(&format!(
                        "{}: {error}; next attempt in {} ms",
                        self.path,
                        wait.as_millis()
                    ));
                }
            }
            if began.elapsed() > BACKOFF.1 {
                wait = BACKOFF.0;
            }
            if self.store.pause(wait) {
                return;
            }
            wait = (wait * 2).min(BACKOFF.1);
        }
    }

    fn list<T: Kept>(&mut self) -> Result<String, ApiError> {
        let mut objects = Objects::<T>::new();
        let mut result = Err(ApiError::Malformed);
        for path in &self.paths {
            self.path.clone_from(path);
            objects.clear();
            result = self.client.list(path, self.query, |json| {
                if let Some(object) = T::read(&json) {
                    objects.insert(object.name().clone(), Arc::new(object));
                }
            });
            if !matches!(result, Err(ApiError::Status(404, _))) {
                break;
            }
        }
        let version = result?;
        self.is_absent = false;
        self.store.replace(objects, std::mem::take(&mut self.is_first));
        Ok(version)
    }

    fn watch<T: Kept>(&self, version: &mut String) -> Result<(), ApiError> {
        let began = Instant::now();
        let mut watch = self.client.watch(&self.path, self.query, version, WATCH_TIME)?;
        let mut is_empty = true;
        while let Some(event) = watch.next_event()? {
            is_empty = false;
            let json = match &event {
                Event::Applied(json) | Event::Deleted(json) | Event::Bookmark(json) => json,
            };
            if let Some(now) = json["metadata"]["resourceVersion"].as_str() {
                now.clone_into(version);
            }
            match event {
                Event::Bookmark(_) => {}
                Event::Applied(json) => match T::read(&json) {
                    Some(object) => self.store.apply(object),
                    // The object is unusable, and its previous version is not what the cluster wants any more.
                    None => self.store.remove::<T>(&name(&json)),
                },
                Event::Deleted(json) => self.store.remove::<T>(&name(&json)),
            }
            if self.store.ends() {
                return Ok(());
            }
        }
        if is_empty && began.elapsed() < BACKOFF.0 {
            Err(ApiError::Status(500, "the watch ends at once".to_owned()))
        } else {
            Ok(())
        }
    }
}

fn name(json: &serde_json::Value) -> ObjectName {
    let of = |key: &str| json["metadata"][key].as_str().unwrap_or_default();
    ObjectName::new(of("namespace"), of("name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_api() {
        let paths: Vec<_> = RESOURCES.iter().flat_map(|resource| resource.paths(Some("n"))).collect();
        assert_eq!(paths[0], "/apis/networking.k8s.io/v1/namespaces/n/ingresses");
        assert_eq!(paths[1], "/apis/networking.k8s.io/v1/ingressclasses");
        assert_eq!(RESOURCES[2].paths(None), ["/api/v1/services"]);
    }
}
