//! etcd as the engine of a fleet, by the JSON gateway of its v3 API: a numbered key for each record of the log, a key for each value of a
//! store. A small client of our own.
//!
//! ```text
//! tailwater/FLEET/last          number of the last record, and a word that is the identity of the log
//! tailwater/FLEET/log/NUMBER    record, with 20 digits
//! tailwater/FLEET/id/ID         number of the record with this identifier
//! tailwater/FLEET/store/NAME/KEY
//! ```
//! Records are read as keys, not from the history of etcd, so compaction takes nothing away. They disappear with a lease after
//! `log_max_age`, and beyond `log_max_messages`.

mod announcements;
mod api;
mod http;
mod log;
mod session;
mod shared;
mod store;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;
use tw_dns::{NameService, SystemFiles, SystemResolver};

use crate::engine::{Engine, EngineError};
use crate::nats::Authentication;
use crate::settings::EngineSettings;
use api::Api;
use http::HttpClient;
use session::EtcdSession;
use shared::Etcd;

pub(crate) use http::LIMITS;

/// Handle of the engine, which its connections share.
pub(crate) struct EtcdEngine(Rc<Etcd>);

#[derive(Debug, Deserialize)]
struct StatusReply {
    version: String,
}

#[derive(Debug, Deserialize)]
struct AuthReply {
    token: String,
}

impl EtcdEngine {
    /// The engine of these settings. Reads the files of the system's resolver.
    pub(crate) fn new(settings: &EngineSettings, fleet: &str) -> Result<Self, String> {
        let tls = settings.tls.then(|| tw_tls::client_config(settings.trusted.as_deref())).transpose()?;
        Ok(Self(Rc::new(Etcd {
            settings: settings.clone(),
            fleet: fleet.into(),
            tls,
            names: NameService::System(SystemResolver::new(SystemFiles::default())),
            tries: Cell::new(0),
        })))
    }

    async fn open(&self, host: &str, port: u16) -> Result<EtcdSession, EngineError> {
        let engine = &self.0;
        let http = HttpClient::new(engine.clone(), host, port);
        let api = Api {
            http,
            prefix: format!("tailwater/{}/", engine.fleet),
            settings: engine.settings.clone(),
            is_closed: Cell::new(false),
            closed: Notify::new(),
            leases: RefCell::default(),
        };
        if let Authentication::Password(name, password) = &engine.settings.authentication {
            let login = json!({ "name": name, "password": **password });
            let reply: AuthReply = api.call("/v3/auth/authenticate", &login).await?;
            if reply.token.is_empty() || !reply.token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(EngineError::Lost("its token is none".to_owned()));
            }
            api.http.set_token(reply.token);
        }
        let status: StatusReply = api.call("/v3/maintenance/status", &json!({})).await?;
        let version: String =
            status.version.chars().filter(|char| char.is_ascii_graphic()).take(32).collect();
        let session = EtcdSession {
            api: Rc::new(api),
            server: format!("etcd {version} at {host}:{port}"),
            appending: tokio::sync::Mutex::default(),
        };
        session.create_log().await?;
        Ok(session)
    }
}

impl Engine for EtcdEngine {
    type Session = EtcdSession;

    async fn connect(&self) -> Result<EtcdSession, EngineError> {
        let servers: Vec<_> = self.0.settings.servers.iter().collect();
        let first = self.0.tries.get();
        let mut last = EngineError::Lost("it has no server".to_owned());
        for nth in 0..servers.len() {
            self.0.tries.set((first + nth) % servers.len());
            let Some((host, port)) = servers.get(self.0.tries.get()) else { continue };
            match self.open(host, *port).await {
                Ok(session) => return Ok(session),
                Err(EngineError::Refused(why)) => {
                    last = EngineError::Refused(format!("{why}, engine: {host}:{port}"));
                }
                Err(error) => last = EngineError::Lost(format!("{error}, engine: {host}:{port}")),
            }
        }
        Err(last)
    }

    fn server(&self, session: &EtcdSession) -> String {
        session.server.clone()
    }
}
