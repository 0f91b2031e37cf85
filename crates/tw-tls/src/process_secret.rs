//! Random secret of the server, from which keys of several purposes are derived: each with a salt of its own.
//!
//! The secret is made when it is first used, and lives as long as the server: it goes from one process to the next with the
//! keys of session tickets.

use aws_lc_rs::rand;
use tw_base::FatalMutex;
use zeroize::Zeroizing;

/// Length of the secret in bytes.
const LEN: usize = 32;

/// Secret of this process or the one before it, once there is one.
static SECRET: FatalMutex<Option<Zeroizing<Vec<u8>>>> = FatalMutex::new(None);

/// Returns the secret.
pub fn get() -> Zeroizing<Vec<u8>> {
    let mut secret = SECRET.lock();
    let secret = secret.get_or_insert_with(|| {
        let mut bytes = Zeroizing::new(vec![0; LEN]);
        rand::fill(&mut bytes).expect("the system has random numbers");
        bytes
    });
    secret.clone()
}

/// Returns the secret for the next process, if it is in use.
pub fn export() -> Option<Zeroizing<Vec<u8>>> {
    SECRET.lock().clone()
}

/// Uses the secret of the process before this one.
pub fn inherit(secret: &[u8]) {
    *SECRET.lock() = Some(Zeroizing::new(secret.to_vec()));
}
