//! Thread that orders and renews certificates. It may wait for authorities, disks and programs. No loop waits for it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, JoinSet, LocalSet, spawn_local};
use tw_log::Level;
use tw_rt::time::sleep;

use crate::config::{AcmeConfig, IssuerConfig};
use crate::task::{Accounts, Task, load};

/// Receiver of messages for the log.
pub type LogFn = Arc<dyn Fn(Level, fmt::Arguments<'_>) + Send + Sync>;

/// Longest wait of a start or a reload for the kept certificates. On a slower disk handshakes begin with
/// temporary ones.
const STATE_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the task of an issuer is restarted after a panic.
const AFTER_FAULT: Duration = Duration::from_secs(10 * 60);

/// Handle of the thread, which ends with it.
#[derive(Debug)]
pub struct Agent(UnboundedSender<AgentCommand>);

enum AgentCommand {
    SetConfig(Arc<AcmeConfig>, LogFn, SyncSender<()>),
    StartOrdering,
    Stop,
}

impl Agent {
    /// Starts the thread. Nothing is ordered before [`start_ordering`](Self::start_ordering).
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start() -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (send, commands) = unbounded_channel();
        thread::Builder::new().name("acme".to_owned()).spawn(move || {
            let tasks = LocalSet::new();
            tasks.block_on(&runtime, serve(commands));
        })?;
        Ok(Self(send))
    }

    /// Sets the configuration: loads the stored certificates, which the caller waits for, and renews them from now on.
    /// Tasks of unchanged issuers go on, and retry failed orders at once.
    pub fn set_config(&self, job: Arc<AcmeConfig>, log: LogFn) {
        let (done, is_done) = sync_channel(1);
        if self.0.send(AgentCommand::SetConfig(job, log, done)).is_ok() {
            // A disk that takes longer is not waited for.
            let _ = is_done.recv_timeout(STATE_TIMEOUT);
        }
    }

    /// Starts to order certificates.
    pub fn start_ordering(&self) {
        // A thread that has ended has logged the reason.
        let _ = self.0.send(AgentCommand::StartOrdering);
    }

    /// Stops ordering, for another process to continue. Certificates in use stay.
    pub fn stop(&self) {
        let _ = self.0.send(AgentCommand::Stop);
    }
}

/// Running task of an issuer.
struct Running {
    work: IssuerConfig,
    log: Rc<RefCell<LogFn>>,
    nudge: Rc<Notify>,
    task: JoinHandle<()>,
}

impl Running {
    /// Returns true if the task has the same configuration.
    fn does(&self, work: &IssuerConfig) -> bool {
        let same = |(one, other): (&crate::config::CertificateConfig, &crate::config::CertificateConfig)| {
            Arc::ptr_eq(&one.slot, &other.slot)
        };
        let fleet = |work: &IssuerConfig| work.fleet.as_ref().map(Arc::as_ptr);
        self.work.issuer == work.issuer
            && fleet(&self.work) == fleet(work)
            && self.work.certificates.len() == work.certificates.len()
            && self.work.certificates.iter().zip(&work.certificates).all(same)
    }
}

async fn serve(mut commands: UnboundedReceiver<AgentCommand>) {
    let mut running: HashMap<Box<str>, Running> = HashMap::new();
    let accounts = Accounts::default();
    let mut current: Option<(Arc<AcmeConfig>, LogFn)> = None;
    let mut has_begun = false;
    while let Some(command) = commands.recv().await {
        match command {
            AgentCommand::SetConfig(job, log, done) => {
                job.works.iter().for_each(|work| load(work, &log));
                // The receiver may have given up waiting.
                let _ = done.send(());
                current = Some((job, log));
            }
            // Starting again would retry failed orders at once.
            AgentCommand::StartOrdering if has_begun => continue,
            AgentCommand::StartOrdering => has_begun = true,
            AgentCommand::Stop => {
                stop(&mut running, |_| true).await;
                return;
            }
        }
        if let (Some((job, log)), true) = (&current, has_begun) {
            stop(&mut running, |running| !job.works.iter().any(|work| running.does(work))).await;
            for work in &job.works {
                match running.get(&work.issuer.name) {
                    Some(known_running) => {
                        *known_running.log.borrow_mut() = log.clone();
                        known_running.nudge.notify_one();
                    }
                    None => drop(running.insert(work.issuer.name.clone(), start(work, job, log, &accounts))),
                }
            }
        }
    }
    stop(&mut running, |_| true).await;
}

/// Ends tasks with their orders in progress: the locks of their directories are free afterwards.
async fn stop(running: &mut HashMap<Box<str>, Running>, is_meant: impl Fn(&Running) -> bool) {
    for (_, running) in running.extract_if(|_, running| is_meant(running)) {
        running.task.abort();
        // The task was aborted, so its error is expected.
        let _ = running.task.await;
    }
}

fn start(work: &IssuerConfig, job: &AcmeConfig, log: &LogFn, accounts: &Accounts) -> Running {
    let log = Rc::new(RefCell::new(log.clone()));
    let nudge = Rc::new(Notify::new());
    let task = {
        let work = work.clone();
        let answers = job.answers.clone();
        let accounts = accounts.clone();
        let log = log.clone();
        let nudge = nudge.clone();
        spawn_local(async move {
            loop {
                let work = work.clone();
                let answers = answers.clone();
                let accounts = accounts.clone();
                let log = log.clone();
                let nudge = nudge.clone();
                let name = work.issuer.name.clone();
                let mut task = JoinSet::new();
                task.spawn_local(
                    Task {
                        work,
                        answers,
                        accounts,
                        log: log.clone(),
                        nudge,
                        fleet_reported: Cell::default(),
                    }
                    .run(),
                );
                // The task ends only by a panic, which has been logged with its place.
                task.join_next().await;
                (log.borrow())(
                    Level::Alert,
                    format_args!(
                        "acme: issuer \"{name}\" failed because of an internal error, next attempt in {} s",
                        AFTER_FAULT.as_secs()
                    ),
                );
                sleep(AFTER_FAULT).await;
            }
        })
    };
    Running { work: work.clone(), log, nudge, task }
}

#[cfg(test)]
mod tests {
    use tw_base::FatalMutex;
    use tw_testkit::{TempDir, wait};

    use super::*;
    use crate::challenge_responses::ChallengeResponses;
    use crate::config::{Account, CertificateConfig, Challenge, Issuer, KeySource, TermsOfService};
    use crate::current_certificate::CurrentCertificate;
    use crate::identifier::Identifier;
    use crate::key_type::KeyType;
    use crate::url::Url;

    fn work(state: &std::path::Path) -> IssuerConfig {
        let mut identifiers = Vec::new();
        Identifier::add("example.com", &mut identifiers).unwrap();
        let slot = Arc::new(CurrentCertificate::new(&identifiers).unwrap());
        let account = Account {
            key: KeySource::Generated(KeyType::EcdsaP256),
            contacts: Vec::new(),
            external: None,
            terms: TermsOfService::NotAccepted,
        };
        let issuer = Issuer {
            name: "one".into(),
            // No server listens on this port.
            uri: Url::parse("https://127.0.0.1:1/").unwrap(),
            account,
            challenge: Challenge::Http01,
            common_name: false,
            preferred_chain: None,
            profile: None,
            trusted: None,
            state: Some(state.to_owned()),
        };
        let resolver = tw_dns::Resolver::new(tw_dns::Settings::new(Vec::new()), Arc::default());
        IssuerConfig {
            issuer: Arc::new(issuer),
            tls: tw_tls::client_config(None).unwrap(),
            resolver: tw_dns::NameService::Resolver(resolver),
            resolver_timeout: Duration::from_secs(1),
            fleet: None,
            certificates: vec![CertificateConfig {
                identifiers: identifiers.into(),
                key: KeyType::EcdsaP256,
                slot,
            }],
        }
    }

    fn log_lines() -> (LogFn, Arc<FatalMutex<String>>) {
        let log_lines = Arc::new(FatalMutex::new(String::new()));
        let into = log_lines.clone();
        (Arc::new(move |_, what| *into.lock() += &format!("{what}\n")), log_lines)
    }

    #[test]
    fn stored_certificates_are_loaded_when_set_config_returns() {
        let dir = TempDir::new("acme-agent").unwrap();
        let work = work(&dir.join("state"));
        let made = tw_testkit::tls::Authority::new().certify(&["example.com"]);
        std::fs::create_dir(dir.join("state")).unwrap();
        std::fs::write(dir.join(format!("state/{}.pem", work.certificates[0].id())), made.key + &made.pem)
            .unwrap();
        let slot = work.certificates[0].slot.clone();
        assert_eq!(slot.chain(), None);
        let (log, log_lines) = log_lines();
        let agent = Agent::start().unwrap();
        let job =
            Arc::new(AcmeConfig { works: vec![work], answers: Arc::new(ChallengeResponses::default()) });
        agent.set_config(job, log);
        assert_eq!(slot.chain().as_deref(), Some(&*made.pem), "{}", *log_lines.lock());
    }

    #[test]
    fn unreachable_authority_is_retried_by_one_agent_only() {
        let dir = TempDir::new("acme-agent").unwrap();
        let within = Duration::from_secs(20);
        let begun = |work: IssuerConfig| {
            let (log, log_lines) = log_lines();
            let agent = Agent::start().unwrap();
            agent.set_config(Arc::new(AcmeConfig { works: vec![work], answers: Arc::default() }), log);
            // The second call has no effect.
            agent.start_ordering();
            agent.start_ordering();
            (agent, log_lines)
        };
        let (first, said) = begun(work(&dir.join("state")));
        assert!(wait::until(within, || said.lock().contains("next attempt in 6")), "{}", *said.lock());
        let line = said.lock().clone();
        assert!(line.starts_with("acme: no certificate \"example.com\" from issuer \"one\": \"127.0.0.1\" cannot be asked: connect() failed (111: Connection refused) to 127.0.0.1:1; a temporary certificate is used"), "{line}");
        let (_second, other) = begun(work(&dir.join("state")));
        drop(first);
        // The second agent asks only after the first has ended.
        assert!(wait::until(within, || other.lock().contains("next attempt in 6")), "{}", *other.lock());
        assert_eq!(said.lock().lines().count(), 1);
    }
}
