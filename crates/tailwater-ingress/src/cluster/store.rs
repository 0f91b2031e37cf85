//! Copies of all objects that the configuration is made of, and a signal when one of them changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::gateway::{
    Gateway, GatewayClass, GrpcRoute, HttpRoute, Namespace, ReferenceGrant, Route, TcpRoute, TlsRoute,
    UdpRoute,
};
use super::object::{ConfigMap, EndpointSlice, Ingress, IngressClass, ObjectName, Secret, Service};

/// Objects of one kind by name.
pub type Objects<T> = BTreeMap<ObjectName, Arc<T>>;

/// All objects at one time. A clone shares the objects.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Ingress objects.
    pub ingresses: Objects<Ingress>,
    /// Classes.
    pub classes: Objects<IngressClass>,
    /// Services.
    pub services: Objects<Service>,
    /// Endpoints.
    pub slices: Objects<EndpointSlice>,
    /// Secrets.
    pub secrets: Objects<Secret>,
    /// Maps of texts.
    pub config_maps: Objects<ConfigMap>,
    /// Namespaces.
    pub namespaces: Objects<Namespace>,
    /// Classes of Gateway objects.
    pub gateway_classes: Objects<GatewayClass>,
    /// Gateway objects.
    pub gateways: Objects<Gateway>,
    /// Routes of requests.
    pub http_routes: Objects<HttpRoute>,
    /// Routes of calls.
    pub grpc_routes: Objects<GrpcRoute>,
    /// Routes of connections with TLS.
    pub tls_routes: Objects<TlsRoute>,
    /// Routes of connections.
    pub tcp_routes: Objects<TcpRoute>,
    /// Routes of datagrams.
    pub udp_routes: Objects<UdpRoute>,
    /// Permissions.
    pub grants: Objects<ReferenceGrant>,
}

impl Snapshot {
    /// All routes, the oldest first.
    pub fn routes(&self) -> Vec<&Route> {
        let http = self.http_routes.values().map(|route| &route.0);
        let grpc = self.grpc_routes.values().map(|route| &route.0);
        let tls = self.tls_routes.values().map(|route| &route.0);
        let tcp = self.tcp_routes.values().map(|route| &route.0);
        let udp = self.udp_routes.values().map(|route| &route.0);
        let mut routes: Vec<_> = http.chain(grpc).chain(tls).chain(tcp).chain(udp).collect();
        routes.sort_by_key(|route| (&route.metadata.created, &route.metadata.name, route.kind));
        routes
    }

    /// Puts another version of a route in its place.
    pub fn put_route(&mut self, route: Route) {
        let name = route.metadata.name.clone();
        match route.kind {
            "HTTPRoute" => drop(self.http_routes.insert(name, Arc::new(HttpRoute(route)))),
            "GRPCRoute" => drop(self.grpc_routes.insert(name, Arc::new(GrpcRoute(route)))),
            "TCPRoute" => drop(self.tcp_routes.insert(name, Arc::new(TcpRoute(route)))),
            "UDPRoute" => drop(self.udp_routes.insert(name, Arc::new(UdpRoute(route)))),
            _ => drop(self.tls_routes.insert(name, Arc::new(TlsRoute(route)))),
        }
    }

    /// Removes a route.
    pub fn remove_route(&mut self, route: &Route) {
        let name = &route.metadata.name;
        match route.kind {
            "HTTPRoute" => drop(self.http_routes.remove(name)),
            "GRPCRoute" => drop(self.grpc_routes.remove(name)),
            "TCPRoute" => drop(self.tcp_routes.remove(name)),
            "UDPRoute" => drop(self.udp_routes.remove(name)),
            _ => drop(self.tls_routes.remove(name)),
        }
    }
}

/// Objects of a kind within a [`Snapshot`].
pub trait Kept: super::object::Object + PartialEq + Send + Sync + 'static {
    /// Their place.
    fn place(snapshot: &mut Snapshot) -> &mut Objects<Self>;
    /// Name of an object.
    fn name(&self) -> &ObjectName;
}

macro_rules! kept {
    ($($kind:ident $(.$inner:tt)? in $field:ident,)*) => {$(
        impl Kept for $kind {
            fn place(snapshot: &mut Snapshot) -> &mut Objects<Self> {
                &mut snapshot.$field
            }

            fn name(&self) -> &ObjectName {
                &self$(.$inner)?.metadata.name
            }
        }
    )*};
}

kept! {
    Ingress in ingresses,
    IngressClass in classes,
    Service in services,
    EndpointSlice in slices,
    Secret in secrets,
    ConfigMap in config_maps,
    Namespace in namespaces,
    GatewayClass in gateway_classes,
    Gateway in gateways,
    HttpRoute.0 in http_routes,
    GrpcRoute.0 in grpc_routes,
    TlsRoute.0 in tls_routes,
    TcpRoute.0 in tcp_routes,
    UdpRoute.0 in udp_routes,
    ReferenceGrant in grants,
}

/// Objects that watches change and the controller reads.
#[derive(Debug, Default)]
pub struct Store {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    snapshot: Snapshot,
    /// Number of changes.
    changes: u64,
    /// Kinds whose first list has not arrived yet.
    missing: usize,
    /// The program ends.
    ends: bool,
}

impl Store {
    /// Creates an empty store that waits for the first lists of `kinds` kinds.
    pub fn new(kinds: usize) -> Self {
        Self { state: Mutex::new(State { missing: kinds, ..State::default() }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A map is whole after every single change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces all objects of a kind. `is_first` for the first list of it.
    pub fn replace<T: Kept>(&self, objects: Objects<T>, is_first: bool) {
        let mut state = self.lock();
        *T::place(&mut state.snapshot) = objects;
        state.missing -= usize::from(is_first && state.missing > 0);
        state.changes += 1;
        self.changed.notify_all();
    }

    /// Adds or changes an object. One that is equal is no change.
    pub fn apply<T: Kept>(&self, object: T) {
        let mut state = self.lock();
        let place = T::place(&mut state.snapshot);
        if place.get(object.name()).is_none_or(|old| **old != object) {
            place.insert(object.name().clone(), Arc::new(object));
            state.changes += 1;
            self.changed.notify_all();
        }
    }

    /// Removes an object.
    pub fn remove<T: Kept>(&self, name: &ObjectName) {
        let mut state = self.lock();
        if T::place(&mut state.snapshot).remove(name).is_some() {
            state.changes += 1;
            self.changed.notify_all();
        }
    }

    /// Wakes up everybody who waits, for the end of the program.
    pub fn end(&self) {
        self.lock().ends = true;
        self.changed.notify_all();
    }

    /// Returns true at the end of the program.
    pub fn ends(&self) -> bool {
        self.lock().ends
    }

    /// Returns true if the first list of every kind has arrived.
    pub fn is_complete(&self) -> bool {
        self.lock().missing == 0
    }

    /// Objects now.
    pub fn snapshot(&self) -> Snapshot {
        self.lock().snapshot.clone()
    }

    /// Waits for a change after `seen_count`, and then until there was none for `quiet`, but `most` at most. Returns the number of changes and the
    /// objects, or `None` if nothing has changed within `within` or the program ends. Objects are complete from the first time on.
    pub fn wait(
        &self,
        seen_count: u64,
        quiet: Duration,
        most: Duration,
        within: Duration,
    ) -> Option<(u64, Snapshot)> {
        let deadline = Instant::now() + within;
        let mut state = self.lock();
        while state.missing > 0 || state.changes == seen_count {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if state.ends || remaining.is_zero() {
                return None;
            }
            state = self.changed.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
        let end = Instant::now() + most;
        loop {
            let changes = state.changes;
            let remaining = end.saturating_duration_since(Instant::now());
            if state.ends {
                return None;
            }
            state = self
                .changed
                .wait_timeout(state, remaining.min(quiet))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            if state.changes == changes || remaining.is_zero() {
                return Some((state.changes, state.snapshot.clone()));
            }
        }
    }

    /// Waits for `span`; returns true at the end of the program.
    pub fn pause(&self, span: Duration) -> bool {
        let deadline = Instant::now() + span;
        let mut state = self.lock();
        loop {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if state.ends || remaining.is_zero() {
                return state.ends;
            }
            state = self.changed.wait_timeout(state, remaining).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::object::Metadata;

    fn class(name: &str, controller: &str) -> IngressClass {
        let metadata = Metadata { name: ObjectName::new("", name), ..Metadata::default() };
        IngressClass { metadata, controller: controller.to_owned() }
    }

    #[test]
    fn changes_are_seen_once() {
        let store = Store::new(1);
        let short = Duration::from_millis(1);
        assert!(store.wait(0, short, short, short).is_none());
        store.replace(Objects::<IngressClass>::new(), true);
        let (seen_count, _) = store.wait(0, short, short, short).unwrap();
        store.apply(class("a", "b"));
        let (seen_count, snapshot) = store.wait(seen_count, short, short, short).unwrap();
        assert_eq!(snapshot.classes.len(), 1);
        store.apply(class("a", "b"));
        assert!(store.wait(seen_count, short, short, short).is_none());
        store.remove::<IngressClass>(&ObjectName::new("", "a"));
        assert!(store.wait(seen_count, short, short, short).unwrap().1.classes.is_empty());
        store.end();
        assert!(store.pause(Duration::from_secs(60)) && store.wait(0, short, short, short).is_none());
    }
}
