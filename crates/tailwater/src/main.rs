//! tailwater
fn main() {}
