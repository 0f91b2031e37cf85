//! Functions of the server that commands use. The program, which has master and worker, hands them over.

use std::path::Path;
use std::process::ExitCode;

use tw_log::Sinks;
use tw_net::Addr;

use crate::configuration::conf::Source;
use crate::output::console::Fault;

/// A server in this process, and orders to a running one.
pub trait Server {
    /// Serves by `source` in this process until a signal ends it. Logs are found in `sinks` first. Calls `started` with the
    /// addresses as soon as they accept connections.
    fn serve(&self, source: Source, sinks: Sinks, started: &mut dyn FnMut(&[Addr])) -> ExitCode;

    /// Reloads the configuration of the running server with this pid file, and waits for the result.
    ///
    /// # Errors
    /// Messages of the server that refused it, or the reason why it was not asked.
    fn reload(&self, pid: &Path) -> Result<(), Vec<Fault>>;
}
