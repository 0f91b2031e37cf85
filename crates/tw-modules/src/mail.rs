//! Modules of mail alone.
