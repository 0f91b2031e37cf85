//! Process model of the server.

/// Process model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// As its starter's child: under systemd, in a container, in a terminal.
    Foreground,
    /// On its own (`daemon on`).
    Background,
    /// In a terminal: without files of its own, and Ctrl-C lets requests finish.
    Session,
}
