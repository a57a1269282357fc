//! Tests of the limits of a listing.

use std::os::unix::fs::symlink;

use super::{files_of, links_out_of};
use crate::models::Model;

/// Makes a folder whose `count` links lead to the folder itself.
fn links_to_itself(count: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for link in 0..count {
        symlink(".", dir.path().join(format!("link-{link}"))).unwrap();
    }
    dir
}

/// Makes seven folders. Each of the first six has `count` links to the next, and the last has one
/// file.
fn links_to_the_next(count: usize) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for step in 0..7 {
        let folder = dir.path().join(step.to_string());
        std::fs::create_dir(&folder).unwrap();
        for link in 0..if step < 6 { count } else { 0 } {
            symlink(format!("../{}", step + 1), folder.join(format!("link-{link}"))).unwrap();
        }
    }
    std::fs::write(dir.path().join("6/weights"), "w").unwrap();
    dir
}

#[test]
fn l13_links_that_multiply_a_folder_are_refused() {
    let sentence = "it has more than 100000 files and folders";
    // 9 levels of 4 links, and 7 of 8: without the limit some 300,000 visits each.
    let said = links_out_of(links_to_itself(4).path()).unwrap_err().to_string();
    assert!(said.starts_with(sentence), "{said}");
    let dir = links_to_the_next(8);
    let said = files_of(dir.path()).unwrap_err().to_string();
    assert!(said.starts_with(sentence), "{said}");
    let said = Model::in_dir(dir.path()).read("config.json").unwrap_err().to_string();
    assert!(said.contains(sentence) && said.contains("has no config.json"), "{said}");
}

#[test]
fn l13_a_few_links_within_a_folder_are_followed() {
    let dir = links_to_the_next(2);
    // The file is in folder 6, and on 2^n paths from the folder n steps before it.
    assert_eq!(files_of(dir.path()).unwrap().len(), (1 << 7) - 1);
    assert_eq!(links_out_of(dir.path()).unwrap(), []);
    assert_eq!(Model::in_dir(dir.path()).read("6/weights").unwrap(), b"w");
}
