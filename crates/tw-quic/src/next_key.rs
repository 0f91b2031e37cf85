//! Keys of the next phase (RFC 9001, section 6). The engine wants both of them while the phase before lasts, which most connections never
//! leave.

use std::sync::{Arc, OnceLock};

use rustls::Error;
use rustls::quic::{PacketKey, PacketKeySet, Secrets, Tag};
use tw_base::FatalMutex;

/// Makes the keys of the phase that these secrets are for.
fn packet_keys(secrets: &Secrets) -> PacketKeySet {
    secrets.clone().next_packet_keys()
}

/// Secrets of the phases that follow.
pub(crate) struct NextSecrets {
    /// Secrets of the next phase, which its own key shares until it is made.
    secrets: Arc<Secrets>,
    /// True once the engine has the keys of that phase.
    is_used: bool,
}

impl NextSecrets {
    pub(crate) fn new(secrets: Secrets) -> Self {
        Self { secrets: Arc::new(secrets), is_used: false }
    }

    /// Keys of the next phase, at the next call of the one behind it.
    pub(crate) fn next_keys(&mut self) -> PacketKeySet {
        if self.is_used {
            let mut behind = (*self.secrets).clone();
            drop(behind.next_packet_keys());
            self.secrets = Arc::new(behind);
        }
        self.is_used = true;
        let remote = packet_keys(&self.secrets).remote;
        PacketKeySet { local: Box::new(NextKey::new(self.secrets.clone(), &*remote)), remote }
    }
}

/// Key with which this end encrypts in the next phase, made for the first packet. Nobody learns anything from the time that this takes: the
/// packet that begins the phase was authenticated, or is this end's own. The key of the other end has to be ready, because a forged packet
/// may seem to begin a phase (section 6.3).
struct NextKey {
    key: OnceLock<Box<dyn PacketKey>>,
    /// Taken when the key is made: they are of no use any more.
    secrets: FatalMutex<Option<Arc<Secrets>>>,
    confidentiality_limit: u64,
    integrity_limit: u64,
    tag_len: usize,
}

impl NextKey {
    /// `remote` is the other end's key of the phase.
    fn new(secrets: Arc<Secrets>, remote: &dyn PacketKey) -> Self {
        Self {
            key: OnceLock::new(),
            secrets: FatalMutex::new(Some(secrets)),
            confidentiality_limit: remote.confidentiality_limit(),
            integrity_limit: remote.integrity_limit(),
            tag_len: remote.tag_len(),
        }
    }

    fn key(&self) -> Result<&dyn PacketKey, Error> {
        if self.key.get().is_none()
            && let Some(secrets) = self.secrets.lock().take()
        {
            let _ = self.key.set(packet_keys(&secrets).local);
        }
        self.key.get().map(|key| &**key).ok_or(Error::EncryptError)
    }
}

impl PacketKey for NextKey {
    fn encrypt_in_place(&self, packet_number: u64, header: &[u8], payload: &mut [u8]) -> Result<Tag, Error> {
        self.key()?.encrypt_in_place(packet_number, header, payload)
    }

    fn decrypt_in_place<'a>(
        &self,
        packet_number: u64,
        header: &[u8],
        payload: &'a mut [u8],
    ) -> Result<&'a [u8], Error> {
        self.key()?.decrypt_in_place(packet_number, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.tag_len
    }

    fn confidentiality_limit(&self) -> u64 {
        self.confidentiality_limit
    }

    fn integrity_limit(&self) -> u64 {
        self.integrity_limit
    }
}
