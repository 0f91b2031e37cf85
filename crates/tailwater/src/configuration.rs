//! State of a start: the texts of the configuration, and the files, directories and rights that it names.

pub(crate) mod built_in;
pub(crate) mod bytes_path;
pub(crate) mod certificate_watch;
pub(crate) mod conf;
pub(crate) mod created_files;
pub(crate) mod directories;
pub(crate) mod machine_checks;
pub(crate) mod member_directories;
pub(crate) mod memory_file;
pub(crate) mod owned_files;
pub(crate) mod process;
pub(crate) mod user;
