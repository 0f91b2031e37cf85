//! From objects to hosts: the oldest Ingress has the path that several want.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::endpoints::UpstreamGroups;
use super::files::Files;
use super::globals::Globals;
use super::host::{self, Host, Location, Target};
use super::passthrough::Passthrough;
use super::ports::ExtraPort;
use super::settings::SiteOptions;
use super::{Site, certificate, render};
use crate::annotation::canary::CanaryRules;
use crate::annotation::policy::Policy;
use crate::cluster::object::{Backend, BackendPort, Ingress, ObjectName, PathKind};
use crate::cluster::store::Snapshot;

/// Annotation with the class, before there was a field.
const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";

/// Ingress objects of our classes, the oldest first.
pub fn selected(snapshot: &Snapshot, options: &SiteOptions) -> Vec<Arc<Ingress>> {
    let is_ours =
        |ingress: &Ingress| match (&ingress.class, ingress.metadata.annotations.get(CLASS_ANNOTATION)) {
            (Some(class), _) => {
                let class = snapshot.classes.get(&ObjectName::new("", &**class));
                class.is_some_and(|class| class.controller == options.controller)
            }
            (None, Some(class)) => *class == options.class,
            (None, None) => {
                let is_default = |class: &Arc<_>| {
                    let class: &crate::cluster::object::IngressClass = class;
                    class.controller == options.controller && class.is_default()
                };
                options.without_class || snapshot.classes.values().any(is_default)
            }
        };
    let mut ingresses: Vec<_> =
        snapshot.ingresses.values().filter(|ingress| is_ours(ingress)).cloned().collect();
    ingresses.sort_by(|a, b| {
        (&a.metadata.created, &a.metadata.name).cmp(&(&b.metadata.created, &b.metadata.name))
    });
    ingresses
}

/// Parts of a configuration while it is made.
pub(super) struct Builder<'a> {
    pub(super) snapshot: &'a Snapshot,
    pub(super) options: &'a SiteOptions,
    pub(super) files: Files,
    pub(super) groups: UpstreamGroups<'a>,
    pub(super) hosts: BTreeMap<String, Host>,
    pub(super) policies: Vec<Policy>,
    /// Hosts whose TLS is not decrypted.
    pub(super) passthrough: BTreeMap<String, Passthrough>,
    /// Ports beside those of the options.
    pub(super) listens: BTreeSet<ExtraPort>,
    /// Lines of the block `http`, with their Ingress.
    pub(super) http: Vec<(ObjectName, String)>,
    pub(super) problems: Vec<(ObjectName, String)>,
}

/// Makes the configuration that serves `ingresses`, which are sorted by age.
pub fn build(snapshot: &Snapshot, ingresses: &[Arc<Ingress>], options: &SiteOptions) -> Site {
    let mut options = options.clone();
    let map = options.config_map.as_ref();
    options.globals =
        Globals::read(map.and_then(|name| snapshot.config_maps.get(name)).map(|map| &**map), |reference| {
            let own = map.map(|name| &*name.namespace).unwrap_or_default();
            snapshot.config_maps.get(&ObjectName::reference(reference, own)?).map(|map| (**map).clone())
        });
    let mut builder = Builder {
        snapshot,
        options: &options,
        files: Files::new(&options.dir.join("files")),
        groups: UpstreamGroups::new(snapshot, options.globals.group.clone()),
        hosts: BTreeMap::new(),
        policies: Vec::new(),
        passthrough: BTreeMap::new(),
        listens: BTreeSet::new(),
        http: Vec::new(),
        problems: Vec::new(),
    };
    let name = map.cloned().unwrap_or_default();
    builder.problems.extend(options.globals.problems.iter().map(|problem| (name.clone(), problem.clone())));
    // The host of requests that no other has is always there.
    builder.hosts.entry(String::new()).or_default();
    for ingress in ingresses.iter().filter(|ingress| !CanaryRules::is_canary(ingress)) {
        builder.add_ingress(ingress);
    }
    for ingress in ingresses.iter().filter(|ingress| CanaryRules::is_canary(ingress)) {
        builder.add_canary(ingress);
    }
    builder.add_default_backend();
    render::render(builder)
}

impl Builder<'_> {
    pub(super) fn problem(&mut self, owner: &ObjectName, text: String) {
        self.problems.push((owner.clone(), text));
    }

    fn add_ingress(&mut self, ingress: &Ingress) {
        let owner = &ingress.metadata.name;
        let policy = Policy::read(ingress, self.snapshot, self.options, &mut self.files);
        self.problems.extend(policy.problems.iter().map(|text| (owner.clone(), text.clone())));
        self.http.extend(policy.http.iter().map(|line| (owner.clone(), line.clone())));
        let number = self.policies.len();
        self.policies.push(policy);
        for rule in &ingress.rules {
            self.add_path(number, &rule.host, rule.kind, &rule.path, rule.backend.as_ref());
        }
        if let Some(backend) = &ingress.default_backend {
            let mut hosts: Vec<_> = ingress.rules.iter().map(|rule| &*rule.host).collect();
            hosts.dedup();
            if hosts.is_empty() {
                hosts.push("");
            }
            for host in hosts {
                let has_root = self
                    .hosts
                    .get(host)
                    .is_some_and(|host| host.locations.contains_key(&(PathKind::Prefix, String::new())));
                if !has_root {
                    self.add_path(number, host, PathKind::Prefix, "/", Some(backend));
                }
            }
        }
        self.add_certificates(ingress);
        self.add_passthrough(number, ingress);
    }

    fn add_path(&mut self, number: usize, host: &str, kind: PathKind, path: &str, backend: Option<&Backend>) {
        let Some(policy) = self.policies.get(number).cloned() else { return };
        let owner = policy.owner.clone();
        if !host::is_valid(host) {
            return self.problem(&owner, format!("host {host:?} is invalid"));
        }
        let key = match host::key(kind, path) {
            Ok(key) => key,
            Err(error) => return self.problem(&owner, error),
        };
        let taken = self.hosts.get(host).and_then(|host| host.locations.get(&key));
        if let Some(other) = taken.and_then(|location| self.policies.get(location.policy)) {
            let text = format!("host \"{host}\" path \"{path}\" belongs to {}", other.owner);
            return self.problem(&owner, text);
        }
        let target = self.target(&policy, backend);
        if let (Target::Unavailable(reason), None) = (&target, &policy.redirect) {
            let text = format!("host \"{host}\" path \"{path}\" is answered with 503: {reason}");
            self.problem(&owner, text);
        }
        let entry = self.hosts.entry(host.to_owned()).or_default();
        entry.locations.insert(key, Location { policy: number, target });
        if !entry.policies.contains(&number) {
            entry.policies.push(number);
        }
    }

    fn target(&mut self, policy: &Policy, backend: Option<&Backend>) -> Target {
        let namespace = &policy.owner.namespace;
        let Some(backend) = backend else {
            return Target::Unavailable("the backend is no service".to_owned());
        };
        let result =
            self.groups.of_backend(namespace, backend, &policy.group, policy.service_upstream, &policy.owner);
        let reason = match result {
            Ok(group) => return Target::Group(group),
            Err(reason) => reason,
        };
        let default = policy
            .default_backend
            .as_ref()
            .map(|service| Backend { service: service.clone(), port: BackendPort::First });
        match default
            .and_then(|backend| self.groups.of_backend(namespace, &backend, &[], false, &policy.owner).ok())
        {
            Some(group) => Target::Group(group),
            None => Target::Unavailable(reason),
        }
    }

    /// Certificates of the hosts of an Ingress. One that is broken leaves its hosts with the default certificate.
    fn add_certificates(&mut self, ingress: &Ingress) {
        let owner = &ingress.metadata.name;
        for tls in &ingress.tls {
            let entry = match &*tls.secret {
                "" => None,
                secret => {
                    let name = ObjectName::new(&*owner.namespace, secret);
                    let secret = self.snapshot.secrets.get(&name).ok_or_else(|| "it is missing".to_owned());
                    match secret.and_then(|secret| certificate::of_secret(secret)) {
                        Ok((chain, key)) => {
                            let chain = self.files.add("crt", chain.clone());
                            Some((chain, self.files.add("key", key.clone())))
                        }
                        Err(error) => {
                            let text = format!("secret \"{name}\": {error}; the default certificate is used");
                            self.problem(owner, text);
                            None
                        }
                    }
                }
            };
            let hosts: Vec<String> = if tls.hosts.is_empty() {
                ingress.rules.iter().map(|rule| rule.host.clone()).collect()
            } else {
                tls.hosts.clone()
            };
            for name in &hosts {
                let covers = |host: &str| match name.strip_prefix("*.") {
                    Some(rest) => {
                        host == name || host.split_once('.').is_some_and(|(_, parent)| parent == rest)
                    }
                    None => host == name,
                };
                let of_ingress = ingress.rules.iter().map(|rule| &*rule.host).filter(|host| covers(host));
                let matching: Vec<_> = of_ingress.map(str::to_owned).collect();
                for name in matching {
                    let Some(host) = self.hosts.get_mut(&name) else { continue };
                    host.has_tls = true;
                    if let (None, Some((chain, key))) = (&host.certificate, &entry) {
                        host.certificate = Some((chain.clone(), key.clone(), owner.clone()));
                    }
                }
            }
        }
    }

    fn add_canary(&mut self, ingress: &Ingress) {
        let owner = &ingress.metadata.name;
        let (rules, problems) = CanaryRules::read(ingress);
        self.problems.extend(problems.into_iter().map(|text| (owner.clone(), text)));
        let own = Policy::read(ingress, self.snapshot, self.options, &mut self.files);
        for (index, rule) in ingress.rules.iter().enumerate() {
            let Ok(key) = host::key(rule.kind, &rule.path) else { continue };
            let location = self.hosts.get(&rule.host).and_then(|host| host.locations.get(&key)).cloned();
            let main = location.as_ref().and_then(|location| self.policies.get(location.policy));
            let (Some(location), Some(main)) = (&location, main) else {
                self.problem(
                    owner,
                    format!("host \"{}\" path \"{}\" has no main Ingress", rule.host, rule.path),
                );
                continue;
            };
            // A namespace of its own must not get the requests of another one.
            if main.owner.namespace != owner.namespace {
                let text =
                    format!("host \"{}\" path \"{}\" belongs to another namespace", rule.host, rule.path);
                self.problem(owner, text);
                continue;
            }
            let Target::Group(group) = &location.target else {
                self.problem(
                    owner,
                    format!(
                        "host \"{}\" path \"{}\" has a canary already, or no endpoints",
                        rule.host, rule.path
                    ),
                );
                continue;
            };
            let lines = if own.group.is_empty() { main.group.clone() } else { own.group.clone() };
            let backend = rule.backend.as_ref().ok_or_else(|| "the backend is no service".to_owned());
            let canary = backend.and_then(|backend| {
                self.groups.of_backend(&owner.namespace, backend, &lines, own.service_upstream, owner)
            });
            let canary = match canary {
                Ok(canary) => canary,
                Err(error) => {
                    self.problem(owner, format!("{error}; all requests go to the main Ingress"));
                    continue;
                }
            };
            let (lines, variable) = rules.lines(&format!("{}_{index}", own.id), group, &canary);
            self.http.extend(lines.into_iter().map(|line| (owner.clone(), line)));
            if let Some(location) =
                self.hosts.get_mut(&rule.host).and_then(|host| host.locations.get_mut(&key))
            {
                location.target = Target::Choice(variable);
            }
        }
    }

    /// The service of requests that nobody serves.
    fn add_default_backend(&mut self) {
        let Some(name) = &self.options.default_backend else { return };
        let has_root = |host: &Host| host.locations.contains_key(&(PathKind::Prefix, String::new()));
        let number = self.policies.len();
        self.policies.push(Policy {
            owner: ObjectName::new(&*name.namespace, ""),
            ssl_redirect: Some(false),
            ..Policy::default()
        });
        let backend = Backend { service: name.name.clone(), port: BackendPort::First };
        let hosts: Vec<_> =
            self.hosts.iter().filter(|(_, host)| !has_root(host)).map(|(name, _)| name.clone()).collect();
        for host in hosts {
            self.add_path(number, &host, PathKind::Prefix, "/", Some(&backend));
        }
    }
}
