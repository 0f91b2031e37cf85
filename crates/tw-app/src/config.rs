//! A loaded configuration of all protocols.

use std::ops::Deref;
use std::sync::Arc;

use tw_core::config_thread::ConfigThread;
use tw_core::generation::{ProcessConfig, ProcessGeneration};
use tw_core::pools::Disks;
use tw_mail::config::{Config as MailConfig, Generation as MailGeneration};
use tw_request::config::directories::Directory;
use tw_request::config::location::TempPath;
use tw_request::generation::{Config as HttpConfig, Generation as HttpGeneration};
use tw_stream::config::{Config as StreamConfig, Generation as StreamGeneration};
use tw_tls_settings::WatchedCertificate;

use crate::generation::Generation;

/// A loaded configuration: nothing in it is open or running.
pub struct Config {
    pub(crate) process: ProcessConfig,
    pub(crate) http: HttpConfig,
    /// `None` without a `stream` block.
    pub(crate) stream: Option<StreamConfig>,
    /// `None` without a `mail` block.
    pub(crate) mail: Option<MailConfig>,
    pub(crate) temp_paths: Vec<Arc<TempPath>>,
}

impl Deref for Config {
    type Target = tw_core::generation::Config;

    fn deref(&self) -> &Self::Target {
        &self.process
    }
}

impl Config {
    /// Makes it generation `id`, which `thread` frees when no loop serves by it any more.
    pub fn publish(self, id: u64, disks: Arc<Disks>, thread: &ConfigThread) -> Generation {
        let process = ProcessGeneration { id, config: self.process, disks: disks.clone() };
        let http = HttpGeneration { id, config: self.http, disks: disks.clone() };
        let mail =
            self.mail.map(|config| thread.publish(MailGeneration { id, config, disks: disks.clone() }));
        let stream = self.stream.map(|config| thread.publish(StreamGeneration { id, config, disks }));
        Generation { process: thread.publish(process), http: thread.publish(http), stream, mail }
    }

    /// Directories to make.
    pub fn temp_paths(&self) -> &[Arc<TempPath>] {
        &self.temp_paths
    }

    /// Directories with their purpose and the places that name them.
    pub fn directories(&self) -> &[Directory] {
        &self.http.directories
    }

    /// Certificates whose files are watched.
    pub fn watched_certificates(&self) -> impl Iterator<Item = &Arc<WatchedCertificate>> {
        let stream = self.stream.iter().flat_map(|stream| stream.watched());
        self.http.watched().chain(stream).chain(self.mail.iter().flat_map(|mail| mail.watched()))
    }
}
