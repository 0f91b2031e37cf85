//! `tailwater fleet follow`: takes over the versions that a node is ordered to serve, and goes back by itself if the node is not healthy
//! with one: the command that has ordered it may be gone.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tw_fleet::{
    ConfigurationClient, ConfigurationDirectory, ConfigurationError, ConfigurationOrder, ConfigurationReport,
    ConfigurationVersion, FollowState, PublicKey, ReportState,
};
use tw_log::Level;

use super::health::HealthWatch;
use super::{ORDER, REPORT, VERSION, connect, load, metrics, read_file, unix_ms};
use crate::cli::{FleetOptions, Options};
use crate::configuration::bytes_path::path;
use crate::output::console::{Console, Fault};
use crate::server::Server;

/// Time between two looks for an order, and between two reports.
const INTERVAL: Duration = Duration::from_secs(1);
/// Looks between two messages that something still fails.
const MESSAGE_LOOKS: u32 = 60;
/// Looks between two attempts to go back from a version. Each one orders the server to reload.
const BACK_LOOKS: u32 = 10;

struct Follower<'a> {
    server: &'a dyn Server,
    options: &'a FleetOptions,
    console: &'a Console,
    key: PublicKey,
    directory: ConfigurationDirectory,
    fleet: String,
    node: String,
    /// Name of the main file in a version.
    main: String,
}

/// Memory of a follower from one look to the next.
struct Memory {
    state: FollowState,
    /// The last order that was not obeyed, because it is none for this node.
    last_refused: Vec<u8>,
    /// Watch over the version that was taken over last.
    watch: Option<HealthWatch>,
    /// Looks since the node could not go back by itself; 0 if it could, or need not.
    stuck: u32,
}

/// Follows the orders for this node until the process is ended.
pub(super) fn follow(server: &dyn Server, options: &FleetOptions, console: &Console) -> Result<(), Fault> {
    let refused = |why: ConfigurationError| Fault::emerg(why.to_string());
    let key = PublicKey::read(&read_file(options.trust.as_deref().unwrap_or_default())?).map_err(refused)?;
    let place = path(options.directory.as_deref().unwrap_or_default());
    let place = std::path::absolute(place).map_err(|error| super::file_failed("getcwd()", place, &error))?;
    let directory = ConfigurationDirectory::open(&place).map_err(|why| {
        refused(why)
            .hint("put the first configuration into a directory there, and make the link \"current\" to it")
    })?;
    let main = options.main.file.as_deref().unwrap_or(b"nginx.conf");
    let main = path(main).file_name().and_then(|name| name.to_str()).unwrap_or("nginx.conf").to_owned();
    let current = place.join("current").join(&main);
    let (_, fleet) = load(&at(options, &current), console)?;
    let settings = fleet.settings();
    let follower = Follower {
        server,
        options,
        console,
        key,
        directory,
        fleet: settings.name.to_string(),
        node: settings.node.to_string(),
        main,
    };
    let state = follower.directory.state().map_err(refused)?;
    let mut memory = Memory { state, last_refused: Vec::new(), watch: None, stuck: 0 };
    let mut client = connect(settings)?;
    let mut away = 0_u32;
    console.report(
        Level::Notice,
        format_args!("following configurations of fleet \"{}\" as \"{}\"", follower.fleet, follower.node),
    );
    loop {
        match follower.step(&mut client, &mut memory) {
            Ok(()) => away = 0,
            Err(error) => {
                if away.is_multiple_of(MESSAGE_LOOKS) {
                    console.report(
                        Level::Error,
                        format_args!("the engine is away, the configuration stays as it is: {error}"),
                    );
                }
                away = away.saturating_add(1);
            }
        }
        client.pause(INTERVAL);
    }
}

/// Options for a main file.
fn at(options: &FleetOptions, file: &Path) -> Options {
    Options {
        file: Some(file.as_os_str().as_bytes().to_vec()),
        prefix: options.main.prefix.clone(),
        globals: options.main.globals.clone(),
        ..Options::default()
    }
}

impl Follower<'_> {
    /// Obeys the order, if there is a new one, looks at the health of the node, and reports.
    fn step(
        &self,
        client: &mut ConfigurationClient,
        memory: &mut Memory,
    ) -> Result<(), tw_fleet::EngineError> {
        let mut report = self.report(&memory.state);
        match memory.watch.as_mut().and_then(|watch| watch.judge(&report, Instant::now())) {
            // A node goes back even while the engine is away.
            Some(why) => {
                self.go_back_alone(memory, &why);
                report = self.report(&memory.state);
            }
            None => memory.stuck = 0,
        }
        if memory.watch.as_ref().is_some_and(|watch| watch.is_over(Instant::now())) {
            memory.watch = None;
        }
        if let Some(value) = client.get(&format!("{ORDER}{}", self.node))?
            && value != memory.last_refused
        {
            match ConfigurationOrder::verify(&self.key, &value) {
                Ok(order) if order.fleet == self.fleet && order.node == self.node => {
                    if order.serial > memory.state.serial {
                        self.obey(client, &order, memory, &report)?;
                        report = self.report(&memory.state);
                    }
                }
                Ok(_) => self.refuse_order(&"it is for another node", value, &mut memory.last_refused),
                Err(why) => self.refuse_order(&why, value, &mut memory.last_refused),
            }
        }
        client.set(&format!("{REPORT}{}", self.node), &report.encode(), None)
    }

    /// Report of the node at this time.
    fn report(&self, state: &FollowState) -> ConfigurationReport {
        let numbers = self.options.metrics.as_deref().and_then(metrics::read);
        let has_metrics = numbers.is_some();
        let numbers = numbers.unwrap_or_default();
        ConfigurationReport {
            node: self.node.clone(),
            serial: state.serial,
            state: state.state,
            number: state.number,
            previous: state.previous(),
            message: state.message.clone(),
            time: unix_ms(),
            has_metrics,
            responses: numbers.responses,
            errors: numbers.errors,
            stalls: numbers.stalls,
        }
    }

    /// Goes back without an order, because the node is not healthy. What fails is tried again: the watch goes on.
    fn go_back_alone(&self, memory: &mut Memory, why: &str) {
        let looks = memory.stuck;
        memory.stuck = looks.saturating_add(1);
        if !looks.is_multiple_of(BACK_LOOKS) {
            return;
        }
        let before = memory.state.clone();
        match self.go_back(&before) {
            Ok(next) => {
                memory.watch = None;
                memory.stuck = 0;
                let bad = before.number;
                let number = next.number;
                let message = format!("went back from version {bad} by itself, because it {why}");
                self.console.report(
                    Level::Error,
                    format_args!("this node {why} with version {bad}: version {number} is served again"),
                );
                memory.state =
                    FollowState { serial: before.serial, state: ReportState::Refused, message, ..next };
                self.save(&memory.state);
            }
            Err(failed) if looks.is_multiple_of(MESSAGE_LOOKS) => self.console.report(
                Level::Error,
                format_args!("this node {why}, and cannot go back from version {}: {failed}", before.number),
            ),
            Err(_) => {}
        }
    }

    fn save(&self, state: &FollowState) {
        if let Err(why) = self.directory.save_state(state) {
            self.console.report(Level::Error, format_args!("the state cannot be saved: {why}"));
        }
    }

    fn refuse_order(&self, why: &dyn std::fmt::Display, value: Vec<u8>, last_refused: &mut Vec<u8>) {
        self.console.report(Level::Error, format_args!("an order for this node is ignored: {why}"));
        *last_refused = value;
    }

    /// Does what an order says. `report` is from before.
    fn obey(
        &self,
        client: &mut ConfigurationClient,
        order: &ConfigurationOrder,
        memory: &mut Memory,
        report: &ConfigurationReport,
    ) -> Result<(), tw_fleet::EngineError> {
        if order.is_done_with(memory.state.number) {
            // The node went back by itself, or another order was faster.
            memory.state.serial = order.serial;
            self.save(&memory.state);
            return Ok(());
        }
        let value = match order.number {
            0 => None,
            number => client.get(&format!("{VERSION}{number}"))?,
        };
        let before = memory.state.clone();
        memory.watch = None;
        let done = match order.number {
            0 => self.go_back(&before),
            _ => self.take_over(order, value.as_deref(), &before),
        };
        match done {
            Ok(next) => {
                let number = next.number;
                if number != before.number {
                    memory.watch =
                        HealthWatch::new(order.settle_s, order.max_errors, report.clone(), Instant::now());
                }
                memory.state = FollowState {
                    serial: order.serial,
                    state: ReportState::Serving,
                    message: String::new(),
                    ..next
                };
                self.console.report(Level::Notice, format_args!("version {number} is served"));
            }
            Err(why) => {
                let number = order.number;
                self.console.report(Level::Error, format_args!("version {number} is refused: {why}"));
                let message = why.to_string();
                memory.state =
                    FollowState { serial: order.serial, state: ReportState::Refused, message, ..before };
            }
        }
        self.save(&memory.state);
        Ok(())
    }

    /// Back to what was served before.
    fn go_back(&self, before: &FollowState) -> Result<FollowState, ConfigurationError> {
        let next = before.back().ok_or_else(|| ConfigurationError::new("nothing was served before"))?;
        self.switch(&next.link, &before.link)?;
        Ok(next)
    }

    fn take_over(
        &self,
        order: &ConfigurationOrder,
        value: Option<&[u8]>,
        before: &FollowState,
    ) -> Result<FollowState, ConfigurationError> {
        let value = value.ok_or_else(|| ConfigurationError::new("the engine does not have it"))?;
        let version = ConfigurationVersion::verify(&self.key, value)?;
        let is_ordered =
            version.fleet == self.fleet && version.number == order.number && version.digest() == order.digest;
        if !is_ordered {
            return Err(ConfigurationError::new("it is not the version that was ordered"));
        }
        if version.main != self.main {
            return Err(ConfigurationError::new(format!(
                "its main file is \"{}\", not \"{}\"",
                version.main, self.main
            )));
        }
        let path = self.directory.write_version(&version)?;
        self.test(&path.join(&self.main))?;
        let link = format!("v{}", version.number);
        if link != before.link {
            self.switch(&link, &before.link)?;
        }
        Ok(before.forward(version.number, &link))
    }

    /// Tests a configuration in a process of its own, as `-t` does; it also has to be one of this node.
    fn test(&self, file: &Path) -> Result<(), ConfigurationError> {
        let failed = |why: std::io::Error| ConfigurationError::new(format!("the test cannot be run ({why})"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["-t", "-q", "-c"]).arg(file).stdin(Stdio::null()).stdout(Stdio::null());
        let main = &self.options.main;
        for (option, value) in [("-p", &main.prefix), ("-g", &main.globals)] {
            if let Some(value) = value {
                command.arg(option).arg(path(value));
            }
        }
        let output = command.output().map_err(failed)?;
        if !output.status.success() {
            return Err(ConfigurationError::new(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        // Without its own fleet, a node would receive no further orders.
        let (_, fleet) = load(&at(self.options, file), &Console::quiet())
            .map_err(|_| ConfigurationError::new("it has no \"fleet\" of its own"))?;
        let settings = fleet.settings();
        if *settings.name == *self.fleet && *settings.node == *self.node {
            Ok(())
        } else {
            Err(ConfigurationError::new(format!(
                "in it, this node is \"{}\" of fleet \"{}\"",
                settings.node, settings.name
            )))
        }
    }

    /// Replaces the link and has the server reload. After a refusal the link is as before.
    fn switch(&self, link: &str, before: &str) -> Result<(), ConfigurationError> {
        self.directory.set_link(link)?;
        let reloaded = self.reload();
        if reloaded.is_err()
            && let Err(why) = self.directory.set_link(before)
        {
            self.console.report(Level::Alert, format_args!("the link cannot be put back: {why}"));
        }
        reloaded
    }

    fn reload(&self) -> Result<(), ConfigurationError> {
        let place = path(self.options.directory.as_deref().unwrap_or_default());
        let options = at(self.options, &place.join("current").join(&self.main));
        let (loaded, _) = load(&options, &Console::quiet())
            .map_err(|_| ConfigurationError::new("it cannot be loaded from the link"))?;
        self.server.reload(path(&loaded.config.main.pid)).map_err(|said| {
            let lines: Vec<_> = said.iter().map(|fault| fault.message.clone()).collect();
            ConfigurationError::new(lines.join("; "))
        })
    }
}
