//! Applies configurations: only the servers of groups by the runtime API, everything else by a reload after a check. An Ingress that makes
//! the server refuse the configuration is replaced by its last good version, or left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::process::ServerProcess;
use crate::cluster::gateway::{Gateway, Route};
use crate::cluster::object::{Ingress, Metadata, ObjectName};
use crate::cluster::store::Snapshot;
use crate::journal::Journal;
use crate::site::ports::{self, ExtraPort};
use crate::site::settings::SiteOptions;
use crate::site::{self, GroupName, READY_FILE, Site, files};

/// Longest wait for a server that was just started.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// Result of applying a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing has changed.
    Unchanged,
    /// Servers of this number of groups were changed, without a reload.
    Endpoints(usize),
    /// The configuration was loaded.
    Reloaded,
    /// The server keeps the configuration it has, for this reason. Another attempt may succeed.
    Failed(String),
}

/// Errors of the server about routes and Gateway objects, and ports that it cannot listen on, for their status.
#[derive(Debug, Default)]
pub struct Verdicts {
    refused: Mutex<BTreeMap<ObjectName, String>>,
    unavailable: Mutex<BTreeMap<ExtraPort, String>>,
}

impl Verdicts {
    /// Objects that the server has refused, by their names as owners of lines, and why.
    pub fn refused(&self) -> BTreeMap<ObjectName, String> {
        // A map is whole after every change.
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ports that the server cannot listen on, and why.
    pub fn unavailable(&self) -> BTreeMap<ExtraPort, String> {
        self.unavailable.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, refused: &BTreeMap<ObjectName, String>, unavailable: &BTreeMap<ExtraPort, String>) {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone_from(refused);
        self.unavailable.lock().unwrap_or_else(PoisonError::into_inner).clone_from(unavailable);
    }
}

/// Configuration in use.
#[derive(Debug)]
struct Applied {
    skeleton: String,
    groups: BTreeMap<GroupName, BTreeSet<String>>,
    files: BTreeSet<PathBuf>,
    listens: BTreeSet<ExtraPort>,
}

/// Applies configurations to a server.
pub struct Applier {
    server: Arc<ServerProcess>,
    journal: Arc<Journal>,
    options: SiteOptions,
    applied: Option<Applied>,
    /// Last versions that the server accepted.
    good: BTreeMap<ObjectName, Arc<Ingress>>,
    /// Last versions of routes that the server accepted.
    good_routes: BTreeMap<ObjectName, Route>,
    verdicts: Arc<Verdicts>,
    /// Ingress objects that are replaced or left out, and why.
    bad: BTreeMap<ObjectName, String>,
    /// Configuration with all Ingress objects, the last time that some were left out.
    refused: String,
    /// Problems that were found while a configuration was loaded, and not reported yet.
    problems: Vec<(ObjectName, String)>,
    /// Configuration with all ports, the last time that some were unavailable to a server that is not ours.
    tried: String,
}

impl Applier {
    /// Creates the directories that it needs.
    ///
    /// # Errors
    /// A directory cannot be created.
    pub fn new(server: Arc<ServerProcess>, journal: Arc<Journal>, options: SiteOptions) -> io::Result<Self> {
        for name in ["", "files", "temp"] {
            DirBuilder::new().recursive(true).mode(0o700).create(options.dir.join(name))?;
        }
        Ok(Self {
            server,
            journal,
            options,
            applied: None,
            good: BTreeMap::new(),
            good_routes: BTreeMap::new(),
            verdicts: Arc::default(),
            bad: BTreeMap::new(),
            refused: String::new(),
            problems: Vec::new(),
            tried: String::new(),
        })
    }

    /// Errors of the server about routes and Gateway objects.
    pub fn verdicts(&self) -> Arc<Verdicts> {
        Arc::clone(&self.verdicts)
    }

    /// Starts the server with the configuration that an earlier run has left, or with one that serves nothing yet.
    ///
    /// # Errors
    /// The server cannot be started.
    pub fn begin(&mut self) -> Result<(), String> {
        let path = self.server.config();
        let has_config = path.is_file() && self.server.check(&path).is_ok();
        if has_config {
            self.journal.line("starting with the configuration of an earlier run");
        } else {
            // The file is left from another run, whose configuration is gone.
            let _ = fs::remove_file(self.options.dir.join(READY_FILE));
            let site = site::build(&Snapshot::default(), &[], &self.options);
            let candidate =
                self.write(&site).map_err(|error| format!("{}: {error}", self.options.dir.display()))?;
            self.server.check(&candidate)?;
            fs::rename(&candidate, &path).map_err(|error| format!("\"{}\": {error}", path.display()))?;
        }
        match self.start() {
            Err(error) if has_config => {
                // The environment has changed meanwhile, for example another program may have taken a port.
                self.journal.line(&format!("{error} with the configuration of an earlier run"));
                fs::remove_file(&path).map_err(|error| format!("\"{}\": {error}", path.display()))?;
                let _ = self.server.reap();
                self.begin()
            }
            Err(error) => Err(error),
            // A server that runs beside the controller still has its earlier configuration.
            Ok(()) if !has_config => self.server.reload(),
            Ok(()) => Ok(()),
        }
    }

    fn start(&self) -> Result<(), String> {
        self.server.start().map_err(|error| format!("the server cannot be started: {error}"))?;
        if self.server.answers(START_TIMEOUT) { Ok(()) } else { Err("the server does not answer".to_owned()) }
    }

    /// Applies the objects of a snapshot.
    pub fn apply(&mut self, snapshot: &Snapshot) -> Outcome {
        let ingresses = site::selected(snapshot, &self.options);
        self.forget_ports(snapshot, &ingresses);
        let full = site::build(snapshot, &ingresses, &self.options);
        for (name, text) in &full.problems {
            self.report(snapshot, name, "NotApplied", text);
        }
        // Objects that were refused get another chance when anything but endpoints has changed.
        let mut bad = std::mem::take(&mut self.bad);
        if full.skeleton() != self.refused {
            bad.clear();
        }
        let site = if bad.is_empty() { full.clone() } else { self.build(snapshot, &ingresses, &bad) };
        let outcome = match self.apply_endpoints(&site) {
            Some(outcome) => outcome,
            None => self.reload(snapshot, &ingresses, site, &mut bad),
        };
        self.refused = if bad.is_empty() { String::new() } else { full.skeleton() };
        for (name, reason) in &bad {
            self.report(snapshot, name, "Refused", reason);
        }
        // Ports may have become unavailable.
        for (name, text) in std::mem::take(&mut self.problems) {
            self.report(snapshot, &name, "NotApplied", &text);
        }
        self.verdicts.set(&bad, &self.options.unavailable);
        self.bad = bad;
        outcome
    }

    fn report(&self, snapshot: &Snapshot, owner: &ObjectName, reason: &str, text: &str) {
        if let Some(ingress) = snapshot.ingresses.get(owner) {
            return self.journal.problem("Ingress", &ingress.metadata, reason, text);
        }
        if let Some(route) = snapshot.routes().into_iter().find(|route| route.owner() == *owner) {
            return self.journal.problem(route.kind, &route.metadata, reason, text);
        }
        if let Some(gateway) = snapshot.gateways.values().find(|gateway| gateway.owner() == *owner) {
            return self.journal.problem("Gateway", &gateway.metadata, reason, text);
        }
        let metadata = snapshot.config_maps.get(owner).map(|map| map.metadata.clone());
        self.journal.problem("ConfigMap", &metadata.unwrap_or_default(), reason, text);
    }

    /// Objects with routes of `bad` in their last good version, or left out.
    fn without_bad(&self, snapshot: &Snapshot, bad: &BTreeMap<ObjectName, String>) -> Snapshot {
        let mut next = snapshot.clone();
        if bad.is_empty() {
            return next;
        }
        for route in snapshot.routes().into_iter().filter(|route| bad.contains_key(&route.owner())) {
            let good = self.good_routes.get(&route.owner());
            match good.filter(|good| good.rules != route.rules || good.hostnames != route.hostnames) {
                Some(good) => next.put_route(good.clone()),
                None => next.remove_route(route),
            }
        }
        next.gateways.retain(|_, gateway| !bad.contains_key(&gateway.owner()));
        next
    }

    fn build(
        &self,
        snapshot: &Snapshot,
        ingresses: &[Arc<Ingress>],
        bad: &BTreeMap<ObjectName, String>,
    ) -> Site {
        site::build(&self.without_bad(snapshot, bad), &self.replaced(ingresses, bad), &self.options)
    }

    /// Metadata of the objects whose lines the configuration has, by their names as owners.
    fn owners(snapshot: &Snapshot, ingresses: &[Arc<Ingress>]) -> BTreeMap<ObjectName, Metadata> {
        let ingresses =
            ingresses.iter().map(|ingress| (ingress.metadata.name.clone(), ingress.metadata.clone()));
        let routes = snapshot.routes().into_iter().map(|route| (route.owner(), route.metadata.clone()));
        let gateways = snapshot.gateways.values();
        let gateways = gateways.map(|gateway: &Arc<Gateway>| (gateway.owner(), gateway.metadata.clone()));
        ingresses.chain(routes).chain(gateways).collect()
    }

    /// Ingress objects with those of `bad` in their last good version, or left out.
    fn replaced(&self, ingresses: &[Arc<Ingress>], bad: &BTreeMap<ObjectName, String>) -> Vec<Arc<Ingress>> {
        let version = |ingress: &Arc<Ingress>| {
            let name = &ingress.metadata.name;
            if bad.contains_key(name) {
                self.good.get(name).filter(|good| good.metadata != ingress.metadata).cloned()
            } else {
                Some(Arc::clone(ingress))
            }
        };
        ingresses.iter().filter_map(version).collect()
    }

    /// Changes servers of groups, if that is all that has changed. `None` if a reload is needed.
    fn apply_endpoints(&mut self, site: &Site) -> Option<Outcome> {
        let applied = self.applied.as_mut()?;
        if applied.skeleton != site.skeleton() {
            return None;
        }
        let changed: Vec<_> =
            site.groups.iter().filter(|(name, servers)| applied.groups.get(*name) != Some(servers)).collect();
        if changed.is_empty() {
            return Some(Outcome::Unchanged);
        }
        for (name, servers) in &changed {
            if let Err(error) = self.server.set_servers(name, servers) {
                self.journal.line(&format!("{error}; reloading instead"));
                return None;
            }
        }
        let count = changed.len();
        applied.groups.clone_from(&site.groups);
        // The next reload, and the next start, have them, too.
        let result = self.write(site).and_then(|candidate| fs::rename(candidate, self.server.config()));
        if let Err(error) = result {
            self.journal.line(&format!("the configuration cannot be written: {error}"));
        }
        Some(Outcome::Endpoints(count))
    }

    /// Checks and loads a configuration, without the Ingress objects that the server refuses.
    fn reload(
        &mut self,
        snapshot: &Snapshot,
        ingresses: &[Arc<Ingress>],
        mut site: Site,
        bad: &mut BTreeMap<ObjectName, String>,
    ) -> Outcome {
        let mut is_searched = false;
        loop {
            if self.probe_new_ports(&site) {
                site = self.build(snapshot, ingresses, bad);
                self.problems.extend(site.problems.iter().cloned());
            }
            let error = match self.check(&site) {
                Ok(candidate) => match self.install(&candidate) {
                    Ok(()) => break,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            if self.note_ports(&site, &error) {
                site = self.build(snapshot, ingresses, bad);
                self.problems.extend(site.problems.iter().cloned());
                continue;
            }
            match self.slowest_task(&site, &error).filter(|name| !bad.contains_key(name)) {
                Some(name) => {
                    bad.insert(name, first_line(&error));
                }
                None if !is_searched => {
                    is_searched = true;
                    self.search(snapshot, ingresses, &error, bad);
                }
                None => return Outcome::Failed(error),
            }
            site = self.build(snapshot, ingresses, bad);
        }
        for ingress in ingresses.iter().filter(|ingress| !bad.contains_key(&ingress.metadata.name)) {
            self.good.insert(ingress.metadata.name.clone(), Arc::clone(ingress));
        }
        for route in snapshot.routes().into_iter().filter(|route| !bad.contains_key(&route.owner())) {
            self.good_routes.insert(route.owner(), route.clone());
        }
        let owners = Self::owners(snapshot, ingresses);
        self.good_routes.retain(|name, _| owners.contains_key(name));
        let is_there = |name: &ObjectName| ingresses.iter().any(|ingress| ingress.metadata.name == *name);
        self.good.retain(|name, _| is_there(name));
        let files: BTreeSet<_> = site.files.contents().keys().cloned().collect();
        let before = self.applied.take().map(|applied| applied.files).unwrap_or_default();
        // Connections that began with the configuration before may still read its files; those before that are gone.
        self.remove_files(&files.union(&before).cloned().collect());
        // Without this file, the pod is not ready until the next reload.
        if let Err(error) = fs::write(self.options.dir.join(READY_FILE), "") {
            self.journal.line(&format!("\"{READY_FILE}\": {error}"));
        }
        let skeleton = site.skeleton();
        self.applied = Some(Applied { skeleton, groups: site.groups, files, listens: site.listens });
        Outcome::Reloaded
    }

    /// Returns true while there are ports that the server cannot listen on; each application of a snapshot tries them again.
    pub fn lacks_ports(&self) -> bool {
        self.server.is_ours() && !self.options.unavailable.is_empty()
    }

    /// Forgets that ports are unavailable which are free now.
    fn forget_ports(&mut self, snapshot: &Snapshot, ingresses: &[Arc<Ingress>]) {
        let mut unavailable = std::mem::take(&mut self.options.unavailable);
        if unavailable.is_empty() {
            return;
        }
        if self.server.is_ours() {
            unavailable.retain(|port, _| port.probe(&self.options).is_err());
            self.options.unavailable = unavailable;
            return;
        }
        // The controller cannot probe ports where the server is, so unavailable ports are tried again with the next
        // change.
        let skeleton = site::build(snapshot, ingresses, &self.options).skeleton();
        if skeleton == self.tried {
            self.options.unavailable = unavailable;
        }
        self.tried = skeleton;
    }

    /// Tries the ports that the configuration in use has not, because the server tries for seconds. Returns true if one is not available.
    fn probe_new_ports(&mut self, site: &Site) -> bool {
        // The configuration of an earlier run may have them.
        let Some(applied) = self.applied.as_ref().filter(|_| self.server.is_ours()) else { return false };
        let mut failed = Vec::new();
        for port in site.listens.difference(&applied.listens) {
            if let Err(error) = port.probe(&self.options) {
                failed.push((*port, error.to_string()));
            }
        }
        self.note_unavailable(failed)
    }

    /// Finds the ports that a message of the server names. Returns true if there are some.
    fn note_ports(&mut self, site: &Site, error: &str) -> bool {
        let numbers: BTreeSet<_> = ports::refused(error).iter().map(SocketAddr::port).collect();
        let used = self.applied.as_ref().map(|applied| &applied.listens);
        let is_new = |port: &&ExtraPort| used.is_none_or(|used| !used.contains(*port));
        let ports = site.listens.iter().filter(is_new).filter(|port| numbers.contains(&port.number));
        let reason = error.lines().find(|line| !ports::refused(line).is_empty()).unwrap_or_default();
        self.note_unavailable(ports.map(|port| (*port, reason.to_owned())).collect())
    }

    fn note_unavailable(&mut self, ports: Vec<(ExtraPort, String)>) -> bool {
        let has_some = !ports.is_empty();
        for (port, reason) in ports {
            self.journal.line(&format!("{port} cannot be listened on, everything else is served: {reason}"));
            self.options.unavailable.insert(port, reason);
        }
        has_some
    }

    /// Ingress that a message of the server names by a line.
    fn slowest_task(&self, site: &Site, error: &str) -> Option<ObjectName> {
        let conf = self.candidate().display().to_string();
        let used = self.server.config().display().to_string();
        let number = |path: &str| {
            let (_, rest) = error.split_once(&format!("{path}:"))?;
            let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
            rest.get(..end)?.parse().ok()
        };
        site.owner(number(&conf).or_else(|| number(&used))?).cloned()
    }

    /// Finds the Ingress objects that the server refuses, by halves: those that have changed are added to those that were good.
    fn search(
        &self,
        snapshot: &Snapshot,
        ingresses: &[Arc<Ingress>],
        error: &str,
        bad: &mut BTreeMap<ObjectName, String>,
    ) {
        let good = |name: &ObjectName| {
            let route = self.good_routes.get(name).map(|route| &route.metadata);
            self.good.get(name).map(|good| &good.metadata).or(route)
        };
        let owners = Self::owners(snapshot, ingresses);
        let changed = owners
            .iter()
            .filter(|(name, now)| !bad.contains_key(*name) && good(name) != Some(*now))
            .map(|(name, _)| name.clone());
        let changed: Vec<_> = changed.collect();
        let mut left_out = bad.clone();
        left_out.extend(changed.iter().map(|name| (name.clone(), first_line(error))));
        self.add_halves(snapshot, ingresses, &changed, &mut left_out);
        *bad = left_out;
    }

    fn add_halves(
        &self,
        snapshot: &Snapshot,
        ingresses: &[Arc<Ingress>],
        names: &[ObjectName],
        bad: &mut BTreeMap<ObjectName, String>,
    ) {
        if names.is_empty() {
            return;
        }
        let mut trial = bad.clone();
        names.iter().for_each(|name| drop(trial.remove(name)));
        let site = self.build(snapshot, ingresses, &trial);
        match self.check(&site) {
            Ok(_) => *bad = trial,
            Err(error) if names.len() == 1 => {
                bad.extend(names.iter().map(|name| (name.clone(), first_line(&error))));
            }
            Err(_) => {
                let (first, second) = names.split_at(names.len() / 2);
                self.add_halves(snapshot, ingresses, first, bad);
                self.add_halves(snapshot, ingresses, second, bad);
            }
        }
    }

    fn candidate(&self) -> PathBuf {
        self.options.dir.join("candidate.conf")
    }

    /// Writes a configuration and its files beside the one in use.
    fn write(&self, site: &Site) -> io::Result<PathBuf> {
        for (path, content) in site.files.contents() {
            if !path.is_file() {
                write_secret(path, content)?;
            }
        }
        let path = self.candidate();
        write_secret(&path, site.text().as_bytes())?;
        Ok(path)
    }

    fn check(&self, site: &Site) -> Result<PathBuf, String> {
        let path =
            self.write(site).map_err(|error| format!("the configuration cannot be written: {error}"))?;
        self.server.check(&path).map(|()| path)
    }

    /// Puts a configuration in the place of the one in use. That one comes back if the server refuses it.
    fn install(&self, candidate: &Path) -> Result<(), String> {
        let path = self.server.config();
        let before = fs::read(&path);
        fs::rename(candidate, &path).map_err(|error| format!("\"{}\": {error}", path.display()))?;
        self.start()?;
        let result = self.server.reload();
        if let (Err(_), Ok(before)) = (&result, before) {
            write_secret(&path, &before).map_err(|error| format!("\"{}\": {error}", path.display()))?;
        }
        result
    }

    fn remove_files(&self, used: &BTreeSet<PathBuf>) {
        let dir = self.options.dir.join("files");
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !used.contains(&entry.path()) {
                // A file that cannot be removed costs some bytes only.
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

fn first_line(error: &str) -> String {
    error.lines().next().unwrap_or_default().to_owned()
}

/// Writes a file that only we may read, in one step.
fn write_secret(path: &Path, content: &[u8]) -> io::Result<()> {
    let next = path.with_file_name(format!("next.{}", files::digest(path.display().to_string().as_bytes())));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&next)?;
    file.write_all(content)?;
    drop(file);
    fs::rename(next, path)
}
