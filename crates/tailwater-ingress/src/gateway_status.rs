//! The status of objects of the Gateway API: conditions, addresses, and the number of routes of each listener.

use std::collections::BTreeMap;
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::cluster::client::{ApiClient, ApiError};
use crate::cluster::gateway::GROUP;
use crate::cluster::object::{Metadata, ObjectName};
use crate::cluster::store::Snapshot;
use crate::journal::timestamp;
use crate::server::applier::Verdicts;
use crate::site::gateway::{Condition, GatewayState, ListenerState, RouteState, attach};
use crate::site::settings::SiteOptions;

/// Most conditions of an object in the API.
const CONDITIONS_MAX: usize = 8;

/// Features of the API that a class announces, by their names in its conformance suite, in alphabetical order.
const FEATURES: &[&str] = &[
    "GRPCRoute",
    "Gateway",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteSchemeRedirect",
    "ReferenceGrant",
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// Writes the status of all objects whose status is another one.
///
/// # Errors
/// The API server refuses one, for another reason than a change meanwhile.
pub fn update(
    client: &ApiClient,
    snapshot: &Snapshot,
    options: &SiteOptions,
    addresses: &[String],
    verdicts: &Verdicts,
) -> Result<(), ApiError> {
    let writer = Writer { client, refused: verdicts.refused(), controller: &options.gateway_controller };
    for class in snapshot.gateway_classes.values() {
        if class.controller != options.gateway_controller {
            continue;
        }
        let accepted =
            Condition { kind: "Accepted", is_true: true, reason: "Accepted", message: String::new() };
        let conditions = conditions(&class.status["conditions"], &[accepted], class.generation);
        let names = FEATURES.iter().map(|name| json!({ "name": name }));
        let status = json!({ "conditions": conditions, "supportedFeatures": names.collect::<Vec<_>>() });
        writer.write("v1", "gatewayclasses", &class.metadata, &class.status, status)?;
    }
    let options = SiteOptions { unavailable: verdicts.unavailable(), ..options.clone() };
    let attachment = attach(snapshot, &options);
    for state in &attachment.gateways {
        let status = writer.gateway(state, addresses);
        let gateway = &state.gateway;
        writer.write("v1", "gateways", &gateway.metadata, &gateway.status, status)?;
    }
    let mut attached = BTreeMap::new();
    for state in &attachment.routes {
        attached.insert(state.route.owner(), state);
    }
    for route in snapshot.routes() {
        let plural = match route.kind {
            "HTTPRoute" => "httproutes",
            "GRPCRoute" => "grpcroutes",
            "TCPRoute" => "tcproutes",
            "UDPRoute" => "udproutes",
            _ => "tlsroutes",
        };
        let status = writer.route(&route.status, attached.get(&route.owner()).copied());
        if let Some(status) = status {
            writer.write(&route.api_version, plural, &route.metadata, &route.status, status)?;
        }
    }
    Ok(())
}

struct Writer<'a> {
    client: &'a ApiClient,
    refused: BTreeMap<ObjectName, String>,
    controller: &'a str,
}

impl Writer<'_> {
    fn gateway(&self, state: &GatewayState, addresses: &[String]) -> Value {
        let gateway = &state.gateway;
        let old = &gateway.status;
        let refused = self.refused.get(&gateway.owner());
        let served = state.listeners.iter().filter(|listener| listener.is_served).count();
        let of = |kind, is_true, reason, message: &str| Condition {
            kind,
            is_true,
            reason,
            message: message.to_owned(),
        };
        let accepted = if served == state.listeners.len() {
            of("Accepted", true, "Accepted", "")
        } else {
            of("Accepted", served > 0, "ListenersNotValid", "some listeners are not served")
        };
        let programmed = match refused {
            Some(reason) => of("Programmed", false, "Invalid", reason),
            None if served == 0 => of("Programmed", false, "Invalid", "no listener is served"),
            None => of("Programmed", true, "Programmed", ""),
        };
        let listeners: Vec<_> = gateway
            .listeners
            .iter()
            .zip(&state.listeners)
            .map(|(listener, listener_state): (_, &ListenerState)| {
                let list = old["listeners"].as_array();
                let old = list.into_iter().flatten().find(|old| old["name"] == *listener.name);
                let old = old.map_or(&Value::Null, |old| &old["conditions"]);
                let kinds: Vec<_> =
                    listener_state.kinds.iter().map(|kind| json!({ "group": GROUP, "kind": kind })).collect();
                json!({
                    "name": listener.name,
                    "supportedKinds": kinds,
                    "attachedRoutes": listener_state.attached,
                    "conditions": conditions(old, &listener_state.conditions, gateway.generation),
                })
            })
            .collect();
        let addresses: Vec<_> = addresses
            .iter()
            .map(|address| match address.parse::<std::net::IpAddr>() {
                Ok(ip) => json!({ "type": "IPAddress", "value": ip.to_string() }),
                Err(_) => json!({ "type": "Hostname", "value": address }),
            })
            .collect();
        json!({
            "addresses": addresses,
            "conditions": conditions(&old["conditions"], &[accepted, programmed], gateway.generation),
            "listeners": listeners,
        })
    }

    /// Status of a route. `None` if it has nothing of ours, and has no Gateway of ours.
    fn route(&self, old: &Value, state: Option<&RouteState>) -> Option<Value> {
        let entries: Vec<_> = old["parents"].as_array().into_iter().flatten().collect();
        let is_ours = |entry: &Value| entry["controllerName"] == self.controller;
        if state.is_none() && !entries.iter().any(|entry| is_ours(entry)) {
            return None;
        }
        // The entries of other controllers remain.
        let mut parents: Vec<Value> =
            entries.iter().filter(|entry| !is_ours(entry)).map(|entry| (*entry).clone()).collect();
        for parent in state.into_iter().flat_map(|state| &state.parents) {
            let route = &state?.route;
            let mut found_conditions = parent.conditions.clone();
            if let Some(reason) = self.refused.get(&route.owner()) {
                let accepted = found_conditions.iter_mut().find(|condition| condition.kind == "Accepted");
                if let Some(accepted) = accepted {
                    *accepted = Condition {
                        kind: "Accepted",
                        is_true: false,
                        reason: "UnsupportedValue",
                        message: reason.clone(),
                    };
                }
            }
            let mut same = entries
                .iter()
                .filter(|entry| is_ours(entry) && entry["parentRef"] == parent.parent.reference);
            let before = same.next().map_or(&Value::Null, |entry| &entry["conditions"]);
            parents.push(json!({
                "parentRef": parent.parent.reference,
                "controllerName": self.controller,
                "conditions": conditions(before, &found_conditions, route.generation),
            }));
        }
        Some(json!({ "parents": parents }))
    }

    fn write(
        &self,
        version: &str,
        plural: &str,
        metadata: &Metadata,
        old: &Value,
        status: Value,
    ) -> Result<(), ApiError> {
        let fields = status.as_object();
        if fields.is_some_and(|fields| fields.iter().all(|(name, value)| is_same(&old[name], value))) {
            return Ok(());
        }
        let ObjectName { namespace, name } = &metadata.name;
        let place = if namespace.is_empty() { String::new() } else { format!("namespaces/{namespace}/") };
        let target = format!("/apis/{GROUP}/{version}/{place}{plural}/{name}/status");
        // A conflict means that the object has changed since; the next round writes the status again.
        let patch = json!({ "metadata": { "resourceVersion": metadata.version }, "status": status });
        match self.client.request("PATCH", &target, Some(("application/merge-patch+json", &patch))) {
            Ok(_) | Err(ApiError::Status(404 | 409, _)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Conditions as the API has them. The time of one that has not changed remains.
fn conditions(old: &Value, found_conditions: &[Condition], generation: i64) -> Vec<Value> {
    let now = timestamp(SystemTime::now());
    let condition = |condition: &Condition| {
        let value = if condition.is_true { "True" } else { "False" };
        let list = old.as_array();
        let before = list.into_iter().flatten().find(|old| old["type"] == condition.kind);
        let since = before
            .filter(|before| before["status"] == value)
            .and_then(|before| before["lastTransitionTime"].as_str())
            .unwrap_or(&now);
        let message: String = condition.message.chars().take(1000).collect();
        json!({
            "type": condition.kind,
            "status": value,
            "reason": condition.reason,
            "message": message,
            "observedGeneration": generation,
            "lastTransitionTime": since,
        })
    };
    found_conditions.iter().take(CONDITIONS_MAX).map(condition).collect()
}

/// Returns true if two parts of a status are equal; an empty list is the same as none.
fn is_same(old: &Value, new: &Value) -> bool {
    old == new || (old.is_null() && new.as_array().is_some_and(Vec::is_empty))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_conditions_remain_until_they_change() {
        let old =
            json!([{"type": "Accepted", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}]);
        let mut accepted =
            Condition { kind: "Accepted", is_true: true, reason: "Accepted", message: String::new() };
        let same = conditions(&old, &[accepted.clone()], 3);
        assert_eq!(same[0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
        assert_eq!(same[0]["observedGeneration"], 3);
        accepted.is_true = false;
        assert_ne!(conditions(&old, &[accepted], 3)[0]["lastTransitionTime"], "2020-01-01T00:00:00Z");
    }
}
