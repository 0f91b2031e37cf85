//! Connecting to the servers of NATS, one after the other.

use super::connection::Connection;
use super::engine::Nats;
use super::jetstream::JetStream;
use crate::engine::{Engine, EngineError};

impl Engine for Nats {
    type Session = JetStream;

    async fn connect(&self) -> Result<JetStream, EngineError> {
        let servers: Vec<_> = self.settings.servers.iter().collect();
        let first = self.tries.get();
        let mut last = EngineError::Lost("it has no server".to_owned());
        for nth in 0..servers.len() {
            self.tries.set((first + nth) % servers.len());
            let Some((host, port)) = servers.get(self.tries.get()) else { continue };
            match Connection::open(self, host, *port).await {
                Ok(connection) => {
                    return JetStream::new(connection, &self.fleet, &self.settings).await;
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn server(&self, session: &JetStream) -> String {
        session.server().to_owned()
    }
}
