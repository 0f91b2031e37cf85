//! The configuration that serves all Ingress objects. Nothing here has I/O: objects in, text and files out.

mod build;
pub mod certificate;
pub mod endpoints;
pub mod files;
pub mod gateway;
pub mod globals;
mod host;
mod location;
mod passthrough;
pub mod ports;
mod render;
mod services;
pub mod settings;

use std::collections::{BTreeMap, BTreeSet};

pub use build::{build, selected};

use self::ports::ExtraPort;
use crate::cluster::object::ObjectName;

/// Name of the file that exists once a configuration with all objects has been loaded. The probe of readiness looks for it: only the
/// answer to a reload says that every loop of the server has the configuration.
pub const READY_FILE: &str = "ready";

/// One line of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Text without the end of the line.
    pub text: String,
    /// Ingress that the line belongs to.
    pub owner: Option<ObjectName>,
    /// Server of an upstream group, which can be changed without a reload.
    pub is_endpoint: bool,
}

/// Upstream group of a block.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupName {
    /// Block, as the runtime API names it: `http` or `stream`.
    pub block: &'static str,
    /// Name.
    pub name: String,
}

/// A configuration, and what else is known of it.
#[derive(Debug, Clone, Default)]
pub struct Site {
    /// Lines of the configuration file.
    pub lines: Vec<Line>,
    /// Files that it names.
    pub files: files::Files,
    /// Servers of each upstream group whose servers are endpoints.
    pub groups: BTreeMap<GroupName, BTreeSet<String>>,
    /// Ports beside those of the options.
    pub listens: BTreeSet<ExtraPort>,
    /// Ingress objects with something that has no effect, and why.
    pub problems: Vec<(ObjectName, String)>,
}

impl Site {
    /// Text of the configuration file.
    pub fn text(&self) -> String {
        self.lines.iter().flat_map(|line| [&*line.text, "\n"]).collect()
    }

    /// Text without endpoints: if it is the same, only endpoints have changed.
    pub fn skeleton(&self) -> String {
        self.lines.iter().filter(|line| !line.is_endpoint).flat_map(|line| [&*line.text, "\n"]).collect()
    }

    /// Ingress that a line of the file belongs to, counted from 1.
    pub fn owner(&self, number: usize) -> Option<&ObjectName> {
        self.lines.get(number.checked_sub(1)?)?.owner.as_ref()
    }
}
