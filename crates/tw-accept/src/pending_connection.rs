//! A connection on its way through its steps: waits within their time, and failures of its TLS handshake.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use rustls::server::Accepted;
use tw_core::event_loop::HandshakeFailure;
use tw_disk::{Account, JobSource, Pool};
use tw_log::Level;
use tw_net::tls::HandshakeError;
use tw_rt::Deadline;
use tw_tls::Identity;
use tw_tls_settings::TlsInfo;

use crate::handshake_budget;
use crate::host::{ChosenServer, Host, TlsHost};
use crate::wait::{WaitError, ready_or_evicted};

/// A connection that goes through its steps.
pub(crate) struct PendingConnection<'a, H> {
    pub(crate) host: &'a H,
    deadline: RefCell<Deadline>,
    /// Begin of the steps.
    begun: Instant,
    /// Time in which all steps must be complete.
    timeout: Duration,
}

impl<'a, H: Host> PendingConnection<'a, H> {
    pub(crate) fn new(host: &'a H, begun: Instant, timeout: Duration) -> Self {
        Self { host, deadline: RefCell::new(Deadline::new()), begun, timeout }
    }

    /// Waits for `ready` until the time is over, or the loop closes the connection to make room.
    pub(crate) async fn wait(
        &self,
        ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Result<(), WaitError> {
        let until = self.begun + self.timeout;
        let remaining = until.saturating_duration_since(tw_rt::clock::now());
        ready_or_evicted(self.host.evictable(), &self.deadline, remaining, ready).await
    }
}

impl<H: TlsHost> PendingConnection<'_, H> {
    /// Reads the certificates that variables name for this client. The inner error is a line of the log; `None` when the time is
    /// over.
    pub(crate) async fn load_certificates(
        &self,
        chosen: &ChosenServer<H>,
        accepted: &Accepted,
    ) -> Option<Result<Vec<Identity>, String>> {
        let dynamic = &chosen.tls.dynamic;
        let names = self.host.certificate_names(chosen.server, TlsInfo::of_hello(accepted), dynamic);
        let disk = self.host.disk();
        let mut account = Account::hit(JobSource::of(self.host.peer_text().as_bytes()));
        let mut identities = Vec::with_capacity(dynamic.len());
        for (certificate, names) in dynamic.iter().zip(&names) {
            match self
                .in_time(certificate.reader().load(names, &mut account, &disk, chosen.pool.as_ref()))
                .await?
            {
                Ok(identity) => identities.push(identity),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(identities))
    }

    /// Waits for `ready`; `None` if the wait failed. The reason is logged.
    pub(crate) async fn ready(
        &self,
        ready: impl FnMut(&mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> Option<()> {
        match self.wait(ready).await {
            Ok(()) => Some(()),
            Err(WaitError::Timeout) => {
                let message = format_args!("client timed out (110: Connection timed out)");
                self.fail(HandshakeFailure::Timeout, Level::Info, message)
            }
            Err(WaitError::Evicted) => {
                self.host.tally().handshake_failed(HandshakeFailure::Overload);
                None
            }
            Err(WaitError::Failed) => {
                self.host.tally().handshake_failed(HandshakeFailure::Closed);
                None
            }
        }
    }

    /// Does work of the handshake on `pool`, or without one on the loop, within the budget. `None` if it cannot be done; the reason
    /// is logged.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        pool: Option<&Pool>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let Some(pool) = pool else { return self.in_time(handshake_budget::run_on_loop(work)).await };
        let _permit = self.in_time(handshake_budget::pool_permit()).await?;
        let mut account = Account::hit(JobSource::of(self.host.peer_text().as_bytes()));
        match pool.run(&mut account, work).await {
            Ok(done) => Some(done),
            Err(error) => self.fail(HandshakeFailure::Overload, Level::Error, format_args!("{error}")),
        }
    }

    /// Waits for `event` as long as the handshake may take.
    pub(crate) async fn in_time<T>(&self, event: impl Future<Output = T>) -> Option<T> {
        let (mut event, mut came) = (pin!(event), None);
        self.ready(|cx| {
            event.as_mut().poll(cx).map(|it| {
                came = Some(it);
                Ok(())
            })
        })
        .await?;
        came
    }

    /// Stores the result of the handshake, and counts it.
    pub(crate) fn complete(&self, info: TlsInfo) {
        self.host.tally().handshake_completed(info.is_resumed);
        self.host.set_tls(info);
    }

    /// Logs and counts a handshake that was rejected because of the name of the server.
    pub(crate) fn rejected<T>(&self) -> Option<T> {
        let message = format_args!("SSL_do_handshake() failed (SSL: rejected by \"ssl_reject_handshake\")");
        self.fail(HandshakeFailure::Rejected, Level::Info, message)
    }

    /// Logs and counts a handshake that ended with an error of the client or of the connection.
    pub(crate) fn failed<T>(&self, error: &HandshakeError) -> Option<T> {
        let fail = |failure, message: std::fmt::Arguments<'_>| self.fail(failure, Level::Info, message);
        match error {
            HandshakeError::Closed => {
                fail(HandshakeFailure::Closed, format_args!("peer closed connection in SSL handshake"))
            }
            HandshakeError::Io(error) => {
                let text = tw_base::Errno(error.raw_os_error().unwrap_or_default());
                fail(HandshakeFailure::Closed, format_args!("SSL_do_handshake() failed ({text})"))
            }
            HandshakeError::Tls(error) => {
                let message = format_args!("SSL_do_handshake() failed (SSL: {error})");
                fail(HandshakeFailure::Protocol, message)
            }
        }
    }

    /// Logs and counts the failure of a handshake.
    pub(crate) fn fail<T>(
        &self,
        failure: HandshakeFailure,
        level: Level,
        message: std::fmt::Arguments<'_>,
    ) -> Option<T> {
        self.host.tally().handshake_failed(failure);
        self.log_handshake(level, message);
        None
    }

    pub(crate) fn log_handshake(&self, level: Level, message: std::fmt::Arguments<'_>) {
        self.host.log(level, format_args!("{message} while SSL handshaking"));
    }
}
