//! Settings of the process and its loops: the `main` and `events` contexts (nginx: ngx_core_module, ngx_events_module).

mod debug_connection;
mod disk_fault;

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use tw_base::fault::FAULT_DELAY_MAX;
use tw_conf::{
    Args, ConfError, Cx, Directive, EVENTS, IneffectiveDirectives, MAIN, Node, Setting, Word, record, units,
};

pub use debug_connection::DebugPeer;
pub use disk_fault::DiskFault;
pub use tw_rt::available_memory::Budget;

use crate::log::LogTarget;
use crate::pools::PoolSettings;

/// `pid` unless the configuration has one, relative to the prefix.
pub const DEFAULT_PID: &str = "logs/nginx.pid";

/// Least `memory_budget`: a process with one loop and no clients takes half of it.
const MEMORY_BUDGET_MIN: u64 = 16 << 20;

/// Settings of the whole process.
#[derive(Debug, Clone)]
pub struct MainSettings {
    /// `worker_processes`: number of loops, counted when the configuration is loaded.
    pub workers: usize,
    /// `worker_connections`: connections of one loop.
    pub worker_connections: u64,
    /// `worker_cpu_affinity`
    pub cpu_affinity: Vec<Box<[u8]>>,
    /// `worker_rlimit_nofile`
    pub rlimit_nofile: Option<u64>,
    /// `worker_rlimit_core`, bytes.
    pub rlimit_core: Option<u64>,
    /// `worker_priority`, a nice value.
    pub priority: i32,
    /// `worker_memory_lock`
    pub memory_lock: MemoryLock,
    /// `memory_budget`
    pub memory_budget: Budget,
    /// `multi_accept`
    pub multi_accept: bool,
    /// `accept_mutex`: whether loops take turns to accept.
    pub accept_mutex: bool,
    /// `accept_mutex_delay`: when a loop tries again to get its turn.
    pub accept_mutex_delay: Duration,
    /// `connection_balance`
    pub connection_balance: ConnectionBalance,
    /// `thread_pool`; the first is `default`.
    pub pools: Vec<PoolSettings>,
    /// `debug_connection`
    pub debug_connections: Vec<DebugPeer>,
    /// `debug_disk_fault`
    pub disk_faults: Vec<DiskFault>,
    /// `error_log` in `main`.
    pub error_log: Vec<LogTarget>,
    /// `loop_guard`
    pub loop_guard: LoopGuard,
    /// `sandbox`
    pub sandbox: Sandbox,
    /// `stall_threshold`
    pub stall_threshold: Duration,
    /// `loop_watchdog`
    pub loop_watchdog: Option<LoopWatchdog>,
    /// `daemon`
    pub daemon: bool,
    /// `pid`
    pub pid: Box<[u8]>,
    /// `user`: user and group.
    pub user: Option<(Box<str>, Option<Box<str>>)>,
    /// `working_directory`
    pub working_directory: Option<Box<[u8]>>,
    /// `env TZ=…`: the time zone of the logs, if not that of the system.
    pub time_zone: Option<Box<str>>,
    /// `env`: variables of the worker process, with the value that it sets.
    pub env: Vec<(Box<str>, Option<Box<str>>)>,
    /// `master_process`: a master and a worker process, or one for all.
    pub master_process: bool,
    /// `worker_shutdown_timeout`
    pub shutdown_timeout: Option<Duration>,
}

/// `worker_processes`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Workers {
    /// As many as there are cores.
    Auto,
    /// This many.
    Count(u32),
}

/// `loop_guard`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopGuard {
    /// No filter.
    Off,
    /// The kernel logs a call that could wait for a disk.
    Log,
    /// Such a call ends the process.
    Enforce,
}

/// `sandbox`: rights that the process gives up before it serves clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sandbox {
    /// Nothing but what `user` says.
    Off,
    /// Privileges, system calls, and the right to change files anywhere but where the configuration needs it; what of
    /// this the kernel can do.
    Auto,
    /// All of it, and the right to read anything but what the configuration names.
    On,
}

/// `worker_memory_lock`: what stays in memory when that is short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryLock {
    /// Nothing.
    Off,
    /// The program, its libraries and the stacks of loops.
    Auto,
    /// All memory of the process.
    On,
}

impl MemoryLock {
    /// As it is written.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::On => "on",
        }
    }
}

/// `loop_watchdog`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopWatchdog {
    /// A loop that has not turned for so long hangs.
    pub after: Duration,
    /// Reaction to a loop that hangs.
    pub then: HangAction,
}

/// Reaction to a loop that hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HangAction {
    /// The error log gets the stacks of all threads.
    Report,
    /// And then the process ends, to be started again.
    Restart,
}

impl LoopWatchdog {
    /// Default of the directive.
    pub const DEFAULT: Self = Self { after: Duration::from_secs(10), then: HangAction::Report };

    /// Reads `time | off [restart]`.
    fn parse(node: &Node) -> Result<Option<Self>, ConfError> {
        let then = match node.args.get(1) {
            None => HangAction::Report,
            Some(word) if word.is("restart") => HangAction::Restart,
            Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\"")).at(word.span)),
        };
        let word = node.arg(0)?;
        match word.is("off") {
            true if then == HangAction::Restart => {
                Err(node.fail("\"restart\" needs a time after which an event loop hangs"))
            }
            true => Ok(None),
            false => match units::msec(&word.bytes).filter(|after| !after.is_zero()) {
                Some(after) => Ok(Some(Self { after, then })),
                None => Err(node.error("invalid value").hint("a time, or off")),
            },
        }
    }
}

/// `connection_balance`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionBalance {
    /// A loop serves what it accepts.
    Off,
    /// A connection that is accepted may be passed on to a loop that does less.
    Accept,
}

tw_base::limits! {
    /// Limits of the process.
    pub(crate) const LIMITS;

    /// Event loops of the process (worker_processes).
    pub const WORKERS_MAX: u64 = 1024, count, "the configuration is refused";
    /// Delay of an operation by debug_disk_fault or tailwater-slowdisk.
    constant time FAULT_DELAY_MAX, "the configuration, or the option, is refused";
    /// Open files and sockets of the process.
    directive "worker_rlimit_nofile", "no new connection is accepted; files get 503";
    /// Time that connections have to end when their loop leaves.
    directive "worker_shutdown_timeout", "they are closed";
}

/// Settings of the process as written.
#[derive(Default)]
pub struct RawMainSettings {
    worker_processes: Setting<Workers>,
    worker_connections: Setting<u64>,
    worker_cpu_affinity: Setting<Vec<Word>>,
    worker_rlimit_nofile: Setting<u64>,
    worker_rlimit_core: Setting<u64>,
    worker_priority: Setting<i32>,
    worker_memory_lock: Setting<MemoryLock>,
    memory_budget: Setting<Budget>,
    multi_accept: Setting<bool>,
    accept_mutex: Setting<bool>,
    accept_mutex_delay: Setting<Duration>,
    connection_balance: Setting<ConnectionBalance>,
    thread_pool: Setting<Vec<PoolSettings>>,
    debug_connections: Setting<Vec<DebugPeer>>,
    disk_faults: Setting<Vec<DiskFault>>,
    error_log: Setting<Vec<LogTarget>>,
    loop_guard: Setting<LoopGuard>,
    sandbox: Setting<Sandbox>,
    stall_threshold: Setting<Duration>,
    loop_watchdog: Setting<Option<LoopWatchdog>>,
    daemon: Setting<bool>,
    master_process: Setting<bool>,
    pid: Setting<Box<[u8]>>,
    user: Setting<(Box<str>, Option<Box<str>>)>,
    working_directory: Setting<Box<[u8]>>,
    env: Vec<(Box<str>, Option<Box<str>>)>,
    worker_shutdown_timeout: Setting<Duration>,
    without_effect: IneffectiveDirectives,
}

/// The records of `main` and `events`.
pub const DIRECTIVES: &[Directive<RawMainSettings>] = &[
    record::new("worker_processes", "number | auto", MAIN, Args::exact(1))
    .default("1")
    .doc("Number of event loops. All run as threads of one process.").set(|raw, node, _| {
        raw.worker_processes.set_with(node, |node| match node.arg(0)? {
            word if word.is("auto") => Ok(Workers::Auto),
            word => match word.number() {
                Some(n @ 1..=WORKERS_MAX) => Ok(Workers::Count(n as u32)),
                _ => Err(node.error("invalid value").hint(format!("a number from 1 to {WORKERS_MAX}, or auto"))),
            },
        })
    }),
    record::number("worker_connections", EVENTS)
        .default("512")
        .doc("Connections of one loop, to clients and to upstream servers. When they are used up, idle ones are closed; if none is idle, a new client is refused, and a request that needs a connection to an upstream server gets 500.").set(|raw, node, _| raw.worker_connections.set_number(node)),
    record::new("worker_cpu_affinity", "cpumask … | auto [cpumask]", MAIN, Args::at_least(1))
    .doc("Binds loops to processors.").set(|raw, node, _| {
        raw.worker_cpu_affinity.set_once(node, node.args.clone())
    }),
    record::number("worker_rlimit_nofile", MAIN)
        .doc("Limit of open descriptors (RLIMIT_NOFILE).").set(|raw, node, _| raw.worker_rlimit_nofile.set_number(node)),
    record::size("worker_rlimit_core", MAIN)
        .doc("Largest core file (RLIMIT_CORE).").set(|raw, node, _| raw.worker_rlimit_core.set_offset(node)),
    record::number("worker_priority", MAIN)
    .default("0")
    .doc("Scheduling priority, as nice(1).").set(|raw, node, _| {
        raw.worker_priority.set_with(node, |node| {
            let word = node.arg(0)?;
            let number = word.as_str().and_then(|text| text.parse().ok());
            number.filter(|n| (-20..=20).contains(n)).ok_or_else(|| node.invalid_value(word))
        })
    }),
    record::new("worker_memory_lock", "on | off | auto", MAIN, Args::exact(1))
    .default("auto")
    .since("Tailwater 0.2")
    .doc("What stays in memory when that is short: the program and the stacks of loops (auto), locked, or the program as a \
        copy where RLIMIT_MEMLOCK is too small for it and for hot_lock_size; or all memory of the process (on), so that no loop waits for a page of code or of swap.").set(|raw, node, _| {
        let words = [MemoryLock::On, MemoryLock::Off, MemoryLock::Auto].map(|lock| (lock.word(), lock));
        raw.worker_memory_lock.set_one_of(node, &words)
    }),
    record::new("memory_budget", "size | auto | off", MAIN, Args::exact(1))
    .default("auto")
    .since("Tailwater 0.2")
    .doc("Memory that the process may take, so that slow clients cannot end it: the limit of its cgroup (auto), or a size. When less \
        than half of it is left, responses are not read ahead of slow clients; with less than a third, new requests of clients that hold \
        much wait, and get 503 after two seconds; with less than a tenth, they get 503 at once, and in the end all do.").set(|raw, node, _| {
        raw.memory_budget.set_with(node, |node| match node.arg(0)? {
            word if word.is("auto") => Ok(Budget::Auto),
            word if word.is("off") => Ok(Budget::Off),
            word => match node.offset()? {
                size if size >= MEMORY_BUDGET_MIN => Ok(Budget::Size(size)),
                _ => Err(node.invalid_value(word).hint(format!("at least {}m", MEMORY_BUDGET_MIN >> 20))),
            },
        })
    }),
    record::flag("multi_accept", EVENTS)
        .default("off")
        .doc("Accepts all waiting connections in one turn. With off, one, and of a loop that does not rest one for each 0.1 ms since the last.").set(|raw, node, _| raw.multi_accept.set_flag(node)),
    record::flag("accept_mutex", EVENTS)
        .default("off")
        .doc("Loops accept from shared sockets in turns, one at a time; sockets with reuseport have no turns.").set(|raw, node, _| raw.accept_mutex.set_flag(node)),
    record::time("accept_mutex_delay", EVENTS)
        .default("500ms")
        .doc("Time after which a loop tries again to accept if another loop has its turn (accept_mutex).").set(|raw, node, _| raw.accept_mutex_delay.set_msec(node)),
    record::new("connection_balance", "off | accept", EVENTS, Args::exact(1))
    .default("accept")
    .since("Tailwater 0.1")
    .doc("Passes an accepted connection to another loop that does less, measured by the time of its turns and by its connections.").set(|raw, node, _| {
        raw.connection_balance.set_one_of(
            node,
            &[("off", ConnectionBalance::Off), ("accept", ConnectionBalance::Accept)],
        )
    }),
    record::new("thread_pool", "name threads=number [max_queue=number] [device_threads=number] [device_timeout=time]", MAIN, Args::range(2, 5))
    .default("default threads=32 max_queue=65536 device_threads=16 device_timeout=10s")
    .since("1.7.11")
    .doc("A named pool of at most this many threads for file operations; they are started when they are needed (since Tailwater 0.2). Files of one device occupy at most device_threads (half of the threads by default); up to max_queue operations wait for each device. Where an operation makes no progress for device_timeout, its device hangs: the thread is replaced, and what waits for the device is answered with 503 or by the origin server until it goes on (both Tailwater 0.2).").set(|raw, node, _| {
        let pool = PoolSettings::parse(node)?;
        if raw.thread_pool.get().is_some_and(|pools| pools.iter().any(|p| p.name == pool.name)) {
            return Err(node.fail(format!("duplicate thread pool \"{}\"", pool.name)));
        }
        raw.thread_pool.push(node, pool);
        Ok(())
    }),
    record::new("error_log", "file | stderr | syslog:… | memory:size [level] [json]", MAIN, Args::at_least(1))
    .default("logs/error.log error")
    .doc("Log file or syslog server for errors, and the minimum level; with json, each line is an object.").set(|raw, node, cx| {
        let target = LogTarget::parse(node, cx)?;
        raw.error_log.push(node, target);
        Ok(())
    }),
    record::new("debug_connection", "address | CIDR | unix:", EVENTS, Args::exact(1))
    .doc("Writes every step of these clients' connections into all their error logs, whatever the levels.").set(|raw, node, cx| {
        for peer in DebugPeer::parse(node, cx)? {
            raw.debug_connections.push(node, peer);
        }
        Ok(())
    }),
    record::new("debug_disk_fault", "path=path [op=operation,…] [delay=time] [error=name] [rate=percent]", MAIN, Args::at_least(1))
    .since("Tailwater 0.2")
    .doc("Delays operations on the files below a path, or makes them fail, on purpose, to rehearse a failing disk. Needs --enable-fault-injection on the command line. Operations: open, read, write, create, rename, unlink, stat, readdir, fsync; all of them by default. The path counts as a disk of its own, of which nothing is in memory.").set(|raw, node, cx| {
        let fault = DiskFault::parse(node, cx)?;
        raw.disk_faults.push(node, fault);
        Ok(())
    }),
    record::new("loop_guard", "off | log | enforce", MAIN, Args::exact(1))
    .default("off")
    .since("Tailwater 0.1")
    .doc("Lets the kernel watch that event loops make no system call that could wait for a disk (seccomp).").set(|raw, node, _| {
        raw.loop_guard.set_one_of(
            node,
            &[("off", LoopGuard::Off), ("log", LoopGuard::Log), ("enforce", LoopGuard::Enforce)],
        )
    }),
    record::new("sandbox", "on | off | auto", MAIN, Args::exact(1))
    .default("auto")
    .since("Tailwater 0.1")
    .doc("What the process gives up for good before it serves anybody: privileges, system calls, changing files (auto), and reading them (on) but where the configuration needs it.").set(|raw, node, _| {
        raw.sandbox.set_one_of(node, &[("on", Sandbox::On), ("off", Sandbox::Off), ("auto", Sandbox::Auto)])
    }),
    record::time("stall_threshold", MAIN | EVENTS)
        .default("10ms")
        .doc("A turn of a loop that takes longer is written into the error log with what ran.").set(|raw, node, _| raw.stall_threshold.set_msec(node)),
    record::new("loop_watchdog", "time | off [restart]", MAIN, Args::range(1, 2))
        .default("10s")
        .since("Tailwater 0.1")
        .doc("An event loop that does not turn for so long is written into the error log with the stack of every thread; with \
            restart the worker process is then ended and started again.").set(|raw, node, _| {
            raw.loop_watchdog.set_with(node, LoopWatchdog::parse)
        }),
    record::flag("daemon", MAIN)
        .default("on")
        .doc("Runs the server in the background.").set(|raw, node, _| raw.daemon.set_flag(node)),
    record::flag("master_process", MAIN)
        .default("on")
        .doc("A privileged master and an unprivileged worker process, which is replaced when it dies; off: one process for everything.").set(|raw, node, _| raw.master_process.set_flag(node)),
    record::new("pid", "file", MAIN, Args::exact(1))
        .default(DEFAULT_PID)
        .doc("File with the number of the process.").set(|raw, node, _| raw.pid.set_bytes(node)),
    record::new("user", "user [group]", MAIN, Args::range(1, 2))
    .default("nobody nobody")
    .doc("User and group of the process once its sockets and logs are open.").set(|raw, node, _| {
        let group = node.args.get(1).map(|word| word.lossy().into());
        raw.user.set_once(node, (node.arg(0)?.lossy().into(), group))
    }),
    record::new("working_directory", "directory", MAIN, Args::exact(1))
    .doc("Current directory of the process, where core files go.").set(|raw, node, _| {
        raw.working_directory.set_bytes(node)
    }),
    record::new("env", "variable[=value]", MAIN, Args::exact(1))
    .default("TZ")
    .doc("A variable that the worker process gets, with this value or the one the master has. TZ is the time zone of the logs.").set(|raw, node, _| {
        let text = String::from_utf8_lossy(&node.arg(0)?.bytes);
        let (name, value) = text.split_once('=').map_or((&*text, None), |(name, value)| (name, Some(value.into())));
        raw.env.push((name.into(), value));
        Ok(())
    }),
    record::new("load_module", "file", MAIN, Args::exact(1))
    .since("1.9.11")
    .doc("Accepted and without effect: what there is is built in, and of any other module directives are refused.").set(|_, _, _| Ok(())),
    record::time("worker_shutdown_timeout", MAIN)
        .since("1.11.11")
        .doc("Longest graceful shutdown; then connections are closed.").set(|raw, node, _| raw.worker_shutdown_timeout.set_msec(node)),
    record::new("use", "method", EVENTS, Args::exact(1))
    .default("epoll")
    .doc("Only epoll.").set(|raw, node, _| {
        let word = node.arg(0)?;
        if !word.is("epoll") {
            return Err(node.fail(format!("invalid event type \"{word}\"")).hint("Tailwater uses epoll"));
        }
        raw.without_effect.set_once(node)
    }),
    without_effect("worker_aio_requests", "number", EVENTS),
    without_effect("timer_resolution", "interval", MAIN),
    without_effect("pcre_jit", "on | off", MAIN),
    without_effect("lock_file", "file", MAIN),
    warned_of("ssl_object_cache_inheritable", "on | off", "Every reload reads certificates again."),
    warned_of("ssl_engine", "device", "There is no OpenSSL here that could use an engine."),
    warned_of("quic_bpf", "on | off", "Datagrams find their connection without BPF."),
    warned_of("debug_points", "abort | stop", "There are no such points here."),
];

const fn without_effect(
    name: &'static str,
    syntax: &'static str,
    contexts: u32,
) -> Directive<RawMainSettings> {
    record::new(name, syntax, contexts, Args::exact(1))
        .doc("Accepted and without effect: nothing here works that way.")
        .set(|raw, node, _| {
            match &*node.name.bytes {
                b"worker_aio_requests" => _ = node.number()?,
                b"timer_resolution" => _ = node.msec()?,
                b"pcre_jit" => _ = node.flag()?,
                _ => {}
            }
            raw.without_effect.set_once(node)
        })
}

// DIFF(nginx): what asks for a part of OpenSSL or nginx that is not here is no reason not to start.
/// A directive that is accepted with a warning; `reason` says why it has no effect.
const fn warned_of(
    name: &'static str,
    syntax: &'static str,
    reason: &'static str,
) -> Directive<RawMainSettings> {
    record::new(name, syntax, MAIN, Args::exact(1)).doc(reason).set(|raw, node, cx| {
        let is_flag = ["ssl_object_cache_inheritable", "quic_bpf"].iter().any(|name| node.name.is(name));
        if is_flag {
            node.flag()?;
        } else if node.name.is("debug_points") && !(node.arg(0)?.is("stop") || node.arg(0)?.is("abort")) {
            return Err(node.fail(format!("invalid value \"{}\"", node.arg(0)?)));
        }
        let reason = match &*node.name.bytes {
            b"ssl_engine" => "there is no OpenSSL here that could use an engine",
            b"debug_points" => "there are no such points here",
            b"quic_bpf" => "datagrams find their connection without BPF",
            _ => "every reload reads certificates again",
        };
        cx.warn(node.span, format!("\"{}\" has no effect: {reason}", node.name));
        raw.without_effect.set_once(node)
    })
}

/// The last value that `env TZ=…` sets.
fn time_zone(env: &[(Box<str>, Option<Box<str>>)]) -> Option<Box<str>> {
    env.iter().rev().find(|(name, _)| &**name == "TZ")?.1.clone()
}

impl MainSettings {
    /// Makes settings from the directives as written. `error_log` is the default of the error log.
    pub fn resolve(raw: RawMainSettings, error_log: &[u8], cx: &Cx<'_>) -> Self {
        let mut pools = raw.thread_pool.take().unwrap_or_default();
        match pools.iter().position(|pool| &*pool.name == "default") {
            Some(at) => pools.swap(0, at),
            None => pools.insert(0, PoolSettings::default_pool()),
        }
        let default = || LogTarget::new(error_log, tw_log::Level::Error, cx);
        let mut error_log = raw.error_log.or_else(|| None, Vec::new);
        // A syslog server may be away, and memory is gone with the process: some file always has the errors.
        if !error_log.iter().any(LogTarget::is_stream) {
            error_log.push(default());
        }
        Self {
            workers: match raw.worker_processes.or(None, Workers::Count(1)) {
                Workers::Count(n) => n as usize,
                Workers::Auto => tw_rt::affinity::usable_cpus().get(),
            },
            worker_connections: raw.worker_connections.or(None, 512),
            cpu_affinity: raw.worker_cpu_affinity.or(None, Vec::new()).into_iter().map(|w| w.bytes).collect(),
            rlimit_nofile: raw.worker_rlimit_nofile.take(),
            rlimit_core: raw.worker_rlimit_core.take(),
            priority: raw.worker_priority.or(None, 0),
            memory_lock: raw.worker_memory_lock.or(None, MemoryLock::Auto),
            memory_budget: raw.memory_budget.or(None, Budget::Auto),
            multi_accept: raw.multi_accept.or(None, false),
            accept_mutex: raw.accept_mutex.or(None, false),
            accept_mutex_delay: raw.accept_mutex_delay.or(None, Duration::from_millis(500)),
            connection_balance: raw.connection_balance.or(None, ConnectionBalance::Accept),
            pools,
            debug_connections: raw.debug_connections.take().unwrap_or_default(),
            disk_faults: raw.disk_faults.take().unwrap_or_default(),
            error_log,
            loop_guard: raw.loop_guard.or(None, LoopGuard::Off),
            sandbox: raw.sandbox.or(None, Sandbox::Auto),
            stall_threshold: raw.stall_threshold.or(None, Duration::from_millis(10)),
            loop_watchdog: raw.loop_watchdog.or(None, Some(LoopWatchdog::DEFAULT)),
            daemon: raw.daemon.or(None, true),
            pid: path_bytes(&cx.full_path(&raw.pid.take().unwrap_or_else(|| DEFAULT_PID.as_bytes().into())))
                .into_bytes()
                .into(),
            user: raw.user.take(),
            working_directory: raw.working_directory.take(),
            time_zone: time_zone(&raw.env),
            env: raw.env,
            master_process: raw.master_process.take().unwrap_or(true),
            shutdown_timeout: raw.worker_shutdown_timeout.take(),
        }
    }

    /// Number of loops.
    pub fn worker_count(&self) -> usize {
        self.workers
    }
}

/// A path for system calls. A NUL, which the language cannot write, would end it.
pub fn path_bytes(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}
