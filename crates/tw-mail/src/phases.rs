//! Life of a session, from its first byte to its line in the access log.
//!
//! | phase | what happens there |
//! |---|---|
//! | post-accept | the PROXY protocol header, `set_real_ip_from` |
//! | access | `allow`, `deny` |
//! | ssl | the TLS handshake of `listen … ssl` |
//! | greeting | the name of the client's host (SMTP), `smtp_greeting_delay` |
//! | commands | the dialogue with the client, with STARTTLS |
//! | limits | `limit_conn`, `limit_req`, with the name of the user |
//! | login | the auth server, then the mail server |
//! | relay | bytes in both directions (tw-connect) |
//! | log | `access_log` |

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_accept::{ProxyHeader, WaitError, read_proxy_header, ready_or_evicted};
use tw_core::access_check::run_checks;
use tw_core::session::Session;
use tw_log::{Level, Text};
use tw_net::Transport;

use crate::auth_http::response::AuthStatus;
use crate::auth_http::{self, AuthFailure};
use crate::client_host;
use crate::dialogue::{AuthMethod, Dialogue, DialogueFacts, Input, MailProtocol, Next, pop3, sasl, smtp};
use crate::handshake::{self, ProxyHost};
use crate::session::{ClientFailure, MailSession};
use crate::session_status::{LoginResult, SessionStatus};
use crate::upstream::{self, LoggedIn, UpstreamRefusal};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which the auth server makes a client wait.
    const WAIT_MAX: Duration = Duration::from_secs(3600), time, "the pause ends";
    /// Bytes that a client sends before the greeting of SMTP and that a log line shows.
    const EARLY_MAX: usize = 512, bytes, "the rest is not shown";
}

/// Serves a session until it is over, and logs it.
#[expect(clippy::manual_async_fn, reason = "an async fn would have the session twice")]
pub(crate) fn run(mut session: Option<MailSession>) -> impl Future<Output = ()> {
    async move {
        let Some(s) = &mut session else { return };
        let (peer, listen) = (s.client.peer().clone(), s.client.listen.clone());
        s.client.write_about(Level::Info, format_args!("client {peer} connected to {listen}"), None);
        // Boxed: the relay runs longest, and stays smaller without this state.
        let logged_in = Box::pin(until_logged_in(s)).await;
        s.wipe_login();
        match logged_in {
            Ok(logged_in) => {
                s.status = SessionStatus::Done;
                upstream::relay_session(s, logged_in).await;
            }
            Err(status) => s.status = status,
        }
        s.count_end();
        for logger in &s.client.clone().server().plan.loggers {
            logger.record(s);
        }
    }
}

/// All phases up to the login at the mail server. The error is the end of the session.
async fn until_logged_in(s: &mut MailSession) -> Result<Box<LoggedIn>, SessionStatus> {
    let client = s.client.clone();
    let server = client.server();
    let plan = &server.plan;
    let mut early = std::mem::take(&mut s.early);
    if client.sends_proxy_header {
        early = post_accept(s, early).await?;
    }
    run_checks(&plan.post_accept, s)?;
    run_checks(&plan.access, s)?;
    if let Some(transport) = &s.transport {
        transport.socket().set_nodelay();
    }
    let end = |s: &mut MailSession, failure: ClientFailure| {
        s.log_failure(&failure);
        failure.status()
    };
    if client.is_tls
        && let Err(failure) = handshake::run(s, std::mem::take(&mut early)).await
    {
        return Err(end(s, failure));
    }
    let mut input = Input::new(server.dialogue.buffer_size.max(INPUT_MIN).max(early.len()));
    input.push(&early);
    if server.dialogue.methods.need_challenge() {
        s.login.salt = salt(&server.settings.name);
    }
    s.action.set("sending client greeting line");
    if let Err(failure) = greet(s, &mut input).await {
        return Err(end(s, failure));
    }
    let mut dialogue = Dialogue::new(server.protocol);
    let mut until = deadline(server.settings.timeout);
    loop {
        s.action.set("in auth state");
        match converse(s, &mut dialogue, &mut input, until).await {
            Ok(Conversation::Login) => {}
            Ok(Conversation::Closed) => return Err(SessionStatus::Left),
            Ok(Conversation::Invalid) => return Err(SessionStatus::Invalid),
            Err(failure) => return Err(end(s, failure)),
        }
        s.user = s.login.user.bytes().into();
        s.method = Some(s.login.method);
        s.attempts = s.attempts.saturating_add(1);
        check_limits(s).await?;
        s.event_loop().tally.mail_logins.add(1);
        let answer = match authenticate(s).await? {
            Authenticated::Accepted(answer) => answer,
            Authenticated::Refused { text, wait } => {
                let now = tw_rt::clock::now();
                let delay = server.login_delay.refused(client.addr(), now);
                refuse_login(s, &mut input, &text, Pause { wait, delay }).await?;
                dialogue.restart();
                s.login.method = AuthMethod::default();
                until = deadline(server.settings.timeout);
                continue;
            }
        };
        return match upstream::log_in(s, &answer).await {
            Ok(logged_in) => {
                s.count_login(LoginResult::Accepted);
                server.login_delay.accepted(client.addr());
                let rest = Bytes::copy_from_slice(input.bytes());
                Ok(Box::new(LoggedIn { rest, ..logged_in }))
            }
            Err(refusal) => Err(end_refused(s, refusal).await),
        };
    }
}

/// Ends a session for which there is none with the mail server.
async fn end_refused(s: &mut MailSession, refusal: UpstreamRefusal) -> SessionStatus {
    let client = s.client.clone();
    let server = client.server();
    let (result, status, text) = match refusal {
        UpstreamRefusal::Failed => (LoginResult::Failed, SessionStatus::MailServer, None),
        UpstreamRefusal::Unavailable(text) => (LoginResult::Failed, SessionStatus::MailServer, text),
        UpstreamRefusal::LoginRefused(text) => (LoginResult::Refused, SessionStatus::Refused, text),
    };
    s.count_login(result);
    if result == LoginResult::Refused {
        let delay = server.login_delay.refused(client.addr(), tw_rt::clock::now());
        if !delay.is_zero()
            && let Err(failure) = s.pause(delay).await
        {
            s.log_failure(&failure);
            return status;
        }
    }
    // The session ends whether the client takes the reply or not.
    let _ = s.send(text.as_deref().unwrap_or(server.protocol.internal_error())).await;
    status
}

/// Smallest size of a buffer for commands: an address of SMTP fits.
const INPUT_MIN: usize = 128;

/// End of a time that begins now.
fn deadline(time: Duration) -> Instant {
    let now = tw_rt::clock::now();
    now.checked_add(time).unwrap_or(now)
}

/// Challenge of APOP and CRAM-MD5, which no other session has.
fn salt(name: &[u8]) -> String {
    let mut random = [0; 8];
    // Without random bytes the time tells challenges apart.
    let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK);
    let number = u64::from_ne_bytes(random);
    format!("<{number}.{}@{}>", tw_rt::clock::unix().secs, String::from_utf8_lossy(name))
}

/// Reads the PROXY protocol header, of which `early` was read already, and returns the bytes behind it.
async fn post_accept(s: &mut MailSession, early: Vec<u8>) -> Result<Vec<u8>, SessionStatus> {
    s.action.set("reading PROXY protocol");
    let timeout = s.server().settings.timeout;
    let Some(Transport::Plain(socket)) = &s.transport else { return Err(SessionStatus::Internal) };
    match read_proxy_header(&ProxyHost(s), socket, early, timeout).await {
        ProxyHeader::Accepted(rest) => Ok(rest),
        ProxyHeader::Absent => Err(SessionStatus::Left),
        ProxyHeader::Invalid => Err(SessionStatus::Handshake),
    }
}

/// Runs the limits for a login, which replace those of the login before. A client beyond them gets an internal error.
async fn check_limits(s: &mut MailSession) -> Result<(), SessionStatus> {
    let client = s.client.clone();
    let limits = &client.server().plan.limits;
    if limits.is_empty() {
        return Ok(());
    }
    s.forget_values();
    let mut checked = run_checks(limits, s).map_err(SessionStatus::from);
    let delay = s.take_login_delay();
    if checked.is_ok() && !delay.is_zero() {
        checked = pause(s, delay).await;
    }
    if checked.is_err() {
        // The session ends whether the client takes the reply or not.
        let _ = s.send(client.server().protocol.internal_error()).await;
    }
    checked
}

/// Sends the greeting.
async fn greet(s: &mut MailSession, input: &mut Input) -> Result<(), ClientFailure> {
    let client = s.client.clone();
    let server = client.server();
    let greeting = match server.protocol {
        MailProtocol::Imap => b"* OK IMAP4 ready\r\n".to_vec(),
        MailProtocol::Pop3 => pop3::greeting(&facts(s), &s.login),
        MailProtocol::Smtp => {
            s.host = client_host::find(s).await;
            if !server.greeting_delay.is_zero() {
                delay_greeting(s, input, server.greeting_delay).await?;
            }
            server.dialogue.texts.greeting.to_vec()
        }
    };
    s.action.set("sending client greeting line");
    s.send(&greeting).await
}

/// Waits for the time of `smtp_greeting_delay`. A client that sends something meanwhile is rejected.
async fn delay_greeting(
    s: &mut MailSession,
    input: &mut Input,
    delay: Duration,
) -> Result<(), ClientFailure> {
    s.action.set("in delay pipelining state");
    let until = deadline(delay);
    if input.bytes().is_empty() {
        match receive(s, input, until).await {
            Err(ClientFailure::Timeout) => return Ok(()),
            Err(failure) => return Err(failure),
            Ok(()) => {}
        }
    }
    let shown = input.bytes().get(..EARLY_MAX).unwrap_or(input.bytes());
    s.log(Level::Info, format_args!("{}", smtp::early_note(shown)));
    input.clear();
    s.send(smtp::INVALID_PIPELINING).await?;
    Err(ClientFailure::Invalid)
}

/// Facts that replies depend on.
fn facts(s: &MailSession) -> DialogueFacts<'_> {
    let server = s.server();
    DialogueFacts {
        capabilities: &server.dialogue.capabilities,
        texts: &server.dialogue.texts,
        methods: server.dialogue.methods,
        starttls: server.starttls,
        is_tls: s.transport.as_ref().is_some_and(|transport| !transport.is_plain()),
        errors_max: server.settings.errors_max,
    }
}

/// End of a dialogue.
enum Conversation {
    /// The login is complete.
    Login,
    /// The client has ended the session.
    Closed,
    /// The client has sent too much that is invalid.
    Invalid,
}

/// Serves commands until the login is complete.
async fn converse(
    s: &mut MailSession,
    dialogue: &mut Dialogue,
    input: &mut Input,
    until: Instant,
) -> Result<Conversation, ClientFailure> {
    loop {
        let client = s.client.clone();
        client.debug(format_args!("{} auth state", client.server().protocol.name()));
        let step = {
            let mut login = std::mem::take(&mut s.login);
            let step = dialogue.advance(input, &mut login, &facts(s));
            s.login = login;
            step
        };
        if let Some(note) = step.note {
            s.log(Level::Info, format_args!("{note}"));
        }
        s.send(&step.reply).await?;
        match step.next {
            Next::Receive => receive(s, input, until).await?,
            Next::Command => {}
            Next::Close => return Ok(Conversation::Closed),
            Next::Abort => return Ok(Conversation::Invalid),
            Next::Login => return Ok(Conversation::Login),
            Next::StartTls => {
                client.used_starttls.set(true);
                handshake::run(s, Vec::new()).await?;
                s.action.set("in auth state");
                dialogue.restart();
            }
        }
    }
}

/// Waits for bytes of the client, and reads them.
async fn receive(s: &mut MailSession, input: &mut Input, until: Instant) -> Result<(), ClientFailure> {
    loop {
        let Some(transport) = &s.transport else { return Err(ClientFailure::Closed) };
        // Memory is reserved once there is something to be read.
        let is_ready = transport.may_have_input();
        if is_ready {
            match transport.try_read_into(input.room()) {
                Ok(0) => return Err(ClientFailure::Closed),
                Ok(count) => {
                    input.received(count);
                    s.add_received(count as u64);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return Err(ClientFailure::Closed),
            }
        }
        let remaining = until.saturating_duration_since(tw_rt::clock::now());
        let client = s.client.clone();
        let ready =
            ready_or_evicted(client.evictable(), &s.deadline, remaining, |cx| transport.poll_readable(cx))
                .await;
        match ready {
            Ok(()) => {}
            Err(WaitError::Timeout) => return Err(ClientFailure::Timeout),
            Err(WaitError::Evicted | WaitError::Failed) => return Err(ClientFailure::Closed),
        }
    }
}

/// Decision about a login.
enum Authenticated {
    /// Address of the mail server.
    Accepted(upstream::MailServer),
    /// The client gets this reply after a pause.
    Refused { text: Vec<u8>, wait: Duration },
}

/// Asks the auth server about the login of the session.
async fn authenticate(s: &mut MailSession) -> Result<Authenticated, SessionStatus> {
    loop {
        s.action.set("in http auth state");
        let response = match auth_http::ask(s).await {
            Ok(response) => response,
            Err(failure) => return Err(auth_failed(s, &failure).await),
        };
        let wait = Duration::from_secs(response.wait_secs).min(WAIT_MAX);
        match response.status {
            AuthStatus::Wait => pause(s, wait).await?,
            AuthStatus::Refused(text) => {
                s.count_login(LoginResult::Refused);
                s.log(Level::Info, format_args!("client login failed: \"{}\"", Text(&text)));
                let text = refusal(s, &text, response.error_code.as_deref());
                return Ok(Authenticated::Refused { text, wait });
            }
            AuthStatus::Ok => {
                return match upstream::MailServer::of(s, &response) {
                    Ok(server) => {
                        server.take_login(s, response);
                        Ok(Authenticated::Accepted(server))
                    }
                    Err(failure) => Err(auth_failed(s, &failure).await),
                };
            }
        }
    }
}

/// Ends a session whose auth server failed.
async fn auth_failed(s: &mut MailSession, failure: &AuthFailure) -> SessionStatus {
    s.count_login(LoginResult::Failed);
    if let Some((level, text)) = failure.line() {
        s.log(level, format_args!("{text}"));
    }
    // The session ends whether the client takes the reply or not.
    let _ = s.send(s.server().protocol.internal_error()).await;
    SessionStatus::AuthServer
}

/// Reply to a client whose login is refused.
fn refusal(s: &MailSession, text: &[u8], code: Option<&[u8]>) -> Vec<u8> {
    match s.server().protocol {
        MailProtocol::Pop3 => [b"-ERR ", text, b"\r\n"].concat(),
        MailProtocol::Imap => [&*s.login.tag, b"NO ", text, b"\r\n"].concat(),
        MailProtocol::Smtp => [code.unwrap_or(smtp::ERROR_CODE), b" ", text, b"\r\n"].concat(),
    }
}

/// Pause before the reply to a refused login.
#[derive(Clone, Copy)]
struct Pause {
    /// Pause of the auth server. If it is zero, the session ends.
    wait: Duration,
    /// Pause of `failed_login_delay`.
    delay: Duration,
}

/// Tells the client that its login is refused. Without a pause the session ends.
async fn refuse_login(
    s: &mut MailSession,
    input: &mut Input,
    text: &[u8],
    Pause { wait, delay }: Pause,
) -> Result<(), SessionStatus> {
    let result = async {
        let pause = wait.max(delay);
        if !pause.is_zero() {
            s.pause(pause).await?;
        }
        if s.login.method.is_token() {
            end_token_exchange(s, input).await?;
        }
        s.send(text).await
    };
    match result.await {
        Ok(()) if !wait.is_zero() => Ok(()),
        Ok(()) => Err(SessionStatus::Refused),
        Err(failure) => {
            s.log_failure(&failure);
            Err(SessionStatus::Refused)
        }
    }
}

/// Sends the reason why a token is refused as a challenge, and waits for the response of the client (RFC 7628, section 3.2.3).
async fn end_token_exchange(s: &mut MailSession, input: &mut Input) -> Result<(), ClientFailure> {
    let sign: &[u8] = match s.server().protocol {
        MailProtocol::Smtp => b"334 ",
        MailProtocol::Pop3 | MailProtocol::Imap => b"+ ",
    };
    let challenge = [sign, &sasl::token_refusal(s.login.method), b"\r\n"].concat();
    s.send(&challenge).await?;
    let until = deadline(s.server().settings.timeout);
    loop {
        if let Some(end) = input.bytes().iter().position(|byte| *byte == b'\n') {
            input.consume(end + 1);
            return Ok(());
        }
        if input.is_full() {
            return Err(ClientFailure::Closed);
        }
        receive(s, input, until).await?;
    }
}

/// Waits before the auth server is asked again.
async fn pause(s: &MailSession, time: Duration) -> Result<(), SessionStatus> {
    s.pause(time).await.map_err(|failure| {
        s.log_failure(&failure);
        failure.status()
    })
}
