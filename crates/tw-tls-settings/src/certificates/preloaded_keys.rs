//! Keys of many servers, read and checked on all cores before the servers ask for them one after the other.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use tw_base::FatalMutex;
use tw_core::config_thread::yield_if_due;
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_rt::affinity::usable_cpus;
use tw_rt::secret;
use tw_tls::{Key, Passwords, Zeroizing};

use super::certificate_file::{self, ParsedFile};
use super::late_key::LateKey;
use crate::directives::raw::Raw;

/// A key that has changed or is new.
struct ChangedKey {
    /// Name of its shared object.
    name: Vec<u8>,
    digest: [u8; 32],
    text: Zeroizing<Vec<u8>>,
}

/// Reads and checks the keys that these blocks name, as far as the configuration before has not had them. Those that cannot be read are
/// left to the servers that name them, and so are all if there are pass phrases.
pub fn preload_keys<'a, P: Protocol>(raws: impl Iterator<Item = &'a Raw> + Clone, cx: &mut Resolve<'_, P>) {
    if raws.clone().any(|raw| raw.ssl_password_file.is_set()) {
        return;
    }
    let mut changed: Vec<ChangedKey> = Vec::new();
    let mut seen_values = HashSet::new();
    for word in raws.filter_map(|raw| raw.ssl_certificate_key.get()).flatten() {
        // Variables name the keys of handshakes.
        if word.bytes.contains(&b'$') {
            continue;
        }
        let name = certificate_file::object_name(certificate_file::KEY, word, cx);
        let is_read = cx.find::<ParsedFile<LateKey>>(&name).is_some();
        if is_read || !seen_values.insert(name.clone()) {
            continue;
        }
        let Ok(text) = certificate_file::contents(word, "certificate key", cx) else { continue };
        let digest = tw_tls::digest([&text[..]]);
        let is_same = |file: &ParsedFile<LateKey>| file.digest == digest;
        if cx.try_keep(&name, is_same, || Err(())).is_err() {
            changed.push(ChangedKey { name, digest, text });
        }
    }
    for (key, read) in changed.iter().zip(read_all(&changed)) {
        if let Some(read) = read {
            let object = || ParsedFile { digest: key.digest, parsed: LateKey::wrap(read) };
            cx.keep(&key.name, |file: &ParsedFile<LateKey>| file.digest == key.digest, object);
        }
    }
}

/// The keys of these texts, in their order; `None` where there is none.
fn read_all(keys: &[ChangedKey]) -> Vec<Option<Key>> {
    let next = AtomicUsize::new(0);
    let all = FatalMutex::new(keys.iter().map(|_| None).collect::<Vec<_>>());
    let work = || {
        loop {
            let at = next.fetch_add(1, Relaxed);
            let Some(key) = keys.get(at) else { return };
            let read = secret::within(|| Key::read(&key.text, &Passwords::default())).ok();
            if let Some(place) = all.lock().get_mut(at) {
                *place = read;
            }
            yield_if_due();
        }
    };
    thread::scope(|scope| {
        for _ in 1..usable_cpus().get().min(keys.len()) {
            // Without further threads this one does it all.
            if thread::Builder::new().name("keys".to_owned()).spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
    std::mem::take(&mut *all.lock())
}
