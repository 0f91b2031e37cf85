//! Position of a block that is being resolved, and the requests of its modules.

use std::any::Any;
use std::ffi::CString;
use std::sync::Arc;

use tw_acme::CurrentCertificate;
use tw_conf::Span;
use tw_connect::upstream_block::UpstreamBlock;
use tw_core::server_names::ServerName;

use crate::config::directories::{Directory, DirectoryPurpose};
use crate::config::location::TempPath;
use crate::config::server::ServerSettings;
use crate::config::upstream::Groups;
use crate::protocol::Http;
use crate::route::Pattern;

/// The block of `http` that is being resolved.
#[derive(Default)]
pub struct Block {
    /// Pattern of the location that is being resolved.
    pub location: Option<Pattern>,
    /// True for an `if` or a `limit_except`.
    pub nameless: bool,
    /// Settings of the server that is being resolved.
    pub server: Option<Arc<ServerSettings>>,
    /// Directories to make.
    pub temp_paths: Vec<Arc<TempPath>>,
    /// Directories with their purpose and the places that name them.
    pub directories: Vec<Directory>,
    /// Named locations that directives of the server, or before the first one of `http`, go on in.
    pub named_uses: Vec<(Box<[u8]>, Span)>,
    /// Upstream servers and the resolution of their names.
    pub upstream: UpstreamBlock<Http>,
    /// Automatic certificate (ACME) of the server that is being resolved.
    pub certificate: Option<Arc<CurrentCertificate>>,
    /// True if the server, or a location of it, answers CONNECT.
    pub opens_tunnels: bool,
    /// Notes of modules about the blocks that are being resolved.
    pub notes: Notes,
}

/// Values that modules keep while a configuration is resolved, one of each type.
#[derive(Default)]
pub struct Notes(Vec<Box<dyn Any>>);

impl Notes {
    /// Value of this type; `None` if nothing has asked for it yet. Searches all of them.
    pub fn find<T: 'static>(&self) -> Option<&T> {
        self.0.iter().find_map(|note| note.downcast_ref())
    }

    /// Value of this type, which is the default one before the first call. Searches all of them.
    pub fn of<T: Default + 'static>(&mut self) -> &mut T {
        let at = self.0.iter().position(|note| note.is::<T>()).unwrap_or_else(|| {
            self.0.push(Box::new(T::default()));
            self.0.len() - 1
        });
        self.0[at].downcast_mut().expect("the value at the index has the type that was searched for")
    }
}

impl Block {
    /// The names of the server that is being resolved, or whose block is.
    pub fn server_names(&self) -> &[ServerName] {
        self.server.as_ref().map(|server| &*server.names).unwrap_or_default()
    }

    /// The location that is being resolved; `None` at `http` and `server`.
    pub fn location(&self) -> Option<&Pattern> {
        self.location.as_ref()
    }

    /// The groups of servers by the names of their `upstream` blocks.
    pub fn upstreams(&self) -> &Arc<Groups> {
        &self.upstream.groups
    }

    /// All groups, for a directive that finds them by a name with variables.
    pub fn any_upstream(&mut self) -> Arc<Groups> {
        self.upstream.any_group()
    }

    /// Remembers that a directive at `span` goes on in a named location, if `uri` is the name of one.
    pub fn use_named_location(&mut self, uri: &[u8], span: Span) {
        if uri.starts_with(b"@") && !uri.contains(&b'$') {
            self.named_uses.push((uri.into(), span));
        }
    }

    /// Returns true for an `if` or a `limit_except`, which is a part of its location.
    pub fn is_nameless(&self) -> bool {
        self.nameless
    }

    /// Remembers the directory of a cache, to be made when the configuration goes live.
    pub fn cache_directory(&mut self, path: CString, span: Span) {
        let purpose = DirectoryPurpose::Cache;
        self.directories.push(Directory { path: path.clone(), purpose, span: Some(span) });
        self.temp_paths.push(Arc::new(TempPath { path, levels: [0; 3] }));
    }

    /// Remembers a directory of a cache that has several. One that cannot be made when the configuration goes live is left
    /// out.
    pub fn member_directory(&mut self, path: CString, span: Span) {
        self.directories.push(Directory { path, purpose: DirectoryPurpose::Member, span: Some(span) });
    }

    /// Remembers a device of a cache.
    pub fn cache_device(&mut self, path: CString, span: Span) {
        self.directories.push(Directory { path, purpose: DirectoryPurpose::Device, span: Some(span) });
    }

    /// Remembers the device of a member of a cache.
    pub fn member_device(&mut self, path: CString, span: Span) {
        self.directories.push(Directory { path, purpose: DirectoryPurpose::MemberDevice, span: Some(span) });
    }

    /// Remembers a directory for temporary files, to be made when the configuration goes live; `span` is where it is named,
    /// if it is no default.
    pub fn temp_path(&mut self, path: TempPath, span: Option<Span>) -> Arc<TempPath> {
        if let Some(known_temp_path) =
            self.temp_paths.iter().find(|known_temp_path| ***known_temp_path == path)
        {
            return known_temp_path.clone();
        }
        let purpose = DirectoryPurpose::Temporary;
        self.directories.push(Directory { path: path.path.clone(), purpose, span });
        let path = Arc::new(path);
        self.temp_paths.push(path.clone());
        path
    }
}
