//! Changes of a group at run time: made on a thread, then written to its `state` file.

use std::ffi::CString;
use std::sync::Arc;

use tw_connect::upstream_block::StateFile;
use tw_connect::{ConnectingProtocol, UpstreamGroup};
use tw_disk::{Account, Disk, DiskError, JobClass, JobSource};
use tw_http::escape::Escape;
use tw_log::Level;
use tw_request::request::Request;
use tw_rt::watch::Subject;
use tw_upstream::{Group, PeerId, PeerList, Server, ServerId, UnknownPeer};

use super::block::Block;
use super::body::ParameterChange;
use super::response::{ApiError, ApiFailure, ApiResponse};
use super::show;

/// Change of one server of a group.
pub(super) enum ServerChange {
    Add(Server),
    Change(u32, ParameterChange),
    Remove(u32),
}

/// Group that is changed, whatever its protocol.
#[derive(Clone)]
pub(super) struct GroupToChange {
    peers: Arc<Group>,
    state: Option<Arc<StateFile>>,
    block: Block,
}

impl GroupToChange {
    pub(super) fn new<P: ConnectingProtocol>(group: &UpstreamGroup<P>, block: Block) -> Self {
        Self { peers: group.peers.clone(), state: group.state.clone(), block }
    }
}

/// Result of a change.
enum ChangeResult {
    Added(u32),
    Changed(u32),
    Removed,
}

/// Why an order was not carried out, or not as a whole.
enum ChangeError {
    Refused(ApiError),
    /// The change failed: its job never ran.
    Change(DiskError),
    /// The change is in force; its file is as before.
    Save(DiskError, CString),
}

/// Remarks in the answer to a change that a reload undoes.
const NO_STATE: &str = "a reload undoes this change, because the upstream block has no \"state\"";
const ADDRESS_ONLY: &str = "a reload undoes this change, because it concerns one address of a name";
/// Field with the remark: the list that answers the removal of a server has no place for it.
const NOTE_FIELD: &str = "Tailwater-Note";

/// Checks that the group has a server or an address of this number.
pub(super) fn exists(group: &Group, id: u32) -> Result<(), ApiError> {
    let list = group.list();
    let is_server = list.servers().iter().any(|(server, _)| server.0 == id);
    if is_server || list.peer(PeerId(id)).is_some() { Ok(()) } else { Err(ApiError::NO_SERVER) }
}

impl ServerChange {
    /// Carries it out, whatever becomes of the client meanwhile.
    pub(super) async fn run(self, r: &mut Request, group: GroupToChange) -> Result<ApiResponse, ApiFailure> {
        let disk = r.generation().disks.default_disk().clone();
        let subject = Subject { kind: "connection", id: r.client().id };
        let of_task = group.clone();
        let task = tw_rt::spawn_local(subject, async move { self.run_on(&disk, &of_task).await });
        match task.await {
            Ok(Ok(changed)) => Ok(changed.answer(r, &group)),
            Ok(Err(failed)) => Err(failed.into_api_error(r).into()),
            // The task panicked, which was logged, or the loop is ending.
            Err(_) => Err(ApiFailure::Status(500)),
        }
    }

    async fn run_on(self, disk: &Disk, group: &GroupToChange) -> Result<ChangeResult, ChangeError> {
        let mut account = Account::new(JobClass::Hit, JobSource::NONE);
        let peers = group.peers.clone();
        let made = disk.pool().run(&mut account, move || self.make(&peers)).await;
        let changed = made.map_err(ChangeError::Change)?.map_err(ChangeError::Refused)?;
        if let Some(state) = &group.state {
            let saved = state.save(&group.peers, disk).await;
            saved.map_err(|error| ChangeError::Save(error, state.path().to_owned()))?;
        }
        Ok(changed)
    }

    /// Makes another list of peers.
    fn make(self, group: &Group) -> Result<ChangeResult, ApiError> {
        let unknown = |_: UnknownPeer| ApiError::NO_SERVER;
        match self {
            Self::Add(server) => {
                let exists = |_| ApiError::new(409, "EntryExists", "entry exists");
                group.add(server).map(|id| ChangeResult::Added(id.0)).map_err(exists)
            }
            Self::Change(id, change) => {
                let list = group.list();
                let server = list.servers().iter().find(|(server_id, _)| server_id.0 == id);
                let params = match (&server, list.peer(PeerId(id))) {
                    (Some((_, server)), _) => &server.params,
                    (None, Some(peer)) => peer.params(),
                    (None, None) => return Err(ApiError::NO_SERVER),
                };
                if change.backup.is_some_and(|backup| backup != params.backup) {
                    return Err(ApiError::new(400, "UpstreamServerImmutable", "\"backup\" is immutable"));
                }
                // An address that DNS gave is changed alone.
                let changed = match server {
                    Some(_) => group.change_server(ServerId(id), |params| change.apply(params)),
                    None => group.change(PeerId(id), |params| change.apply(params)),
                };
                changed.map(|()| ChangeResult::Changed(id)).map_err(unknown)
            }
            Self::Remove(id) => match group.remove_server(ServerId(id)) {
                Ok(()) => Ok(ChangeResult::Removed),
                Err(UnknownPeer) if group.list().peer(PeerId(id)).is_some() => {
                    let text = "server removal not allowed: DNS gives this address, and would bring it back";
                    Err(ApiError::new(400, "UpstreamServerImmutable", text))
                }
                Err(UnknownPeer) => Err(ApiError::NO_SERVER),
            },
        }
    }
}

impl ChangeResult {
    fn answer(&self, r: &Request, group: &GroupToChange) -> ApiResponse {
        let list = group.peers.list();
        let note = self.note(&list, group);
        // Another change may have removed the server by now.
        let shown = |id| show::server(&list, id, group.block, note).unwrap_or_else(|| b"{}".to_vec());
        let mut response = match *self {
            Self::Added(id) => {
                let above = r.uri.path.strip_suffix(b"/").unwrap_or(&r.uri.path);
                let mut location = Vec::new();
                Escape::Uri.push(above, &mut location);
                location.extend_from_slice(format!("/{id}").as_bytes());
                ApiResponse { status: 201, fields: vec![("Location", location)], json: shown(id) }
            }
            Self::Changed(id) => ApiResponse::ok(shown(id)),
            Self::Removed => ApiResponse::ok(show::servers(&list, group.block)),
        };
        response.fields.extend(note.map(|note| (NOTE_FIELD, note.into())));
        response
    }

    /// Remark about a change that a reload undoes; `None` if the `state` file keeps it.
    fn note(&self, list: &PeerList, group: &GroupToChange) -> Option<&'static str> {
        let is_server = |id: u32| list.servers().iter().any(|(server, _)| server.0 == id);
        match *self {
            _ if group.state.is_none() => Some(NO_STATE),
            Self::Changed(id) if !is_server(id) => Some(ADDRESS_ONLY),
            _ => None,
        }
    }
}

impl ChangeError {
    /// Logs details for the operator, and returns the error for the client.
    fn into_api_error(self, r: &Request) -> ApiError {
        match self {
            Self::Refused(refusal) => refusal,
            Self::Change(error) => {
                r.log(Level::Error, format_args!("{error} while changing an upstream"));
                ApiError::new(503, "Overload", format!("nothing was changed: {error}"))
            }
            Self::Save(error, path) => {
                r.log(Level::Crit, format_args!("{} while saving the state of an upstream", error.on(&path)));
                let text = format!("the change is in force, but its state is not saved: {}", error.on(&path));
                ApiError::new(500, "StateNotSaved", text)
            }
        }
    }
}
