//! State of a start: the texts of the configuration, and the files, directories and rights that it names.

pub mod built_in;
pub mod bytes_path;
pub mod certificate_watch;
pub mod conf;
pub mod created_files;
pub mod directories;
pub mod machine_checks;
pub mod member_directories;
pub mod memory_file;
pub mod owned_files;
pub mod process;
pub mod user;
