//! Confinement of a process: no core dumps, and no panic messages in logs.

use std::panic::PanicHookInfo;

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

use crate::error::Error;

/// Disables core dumps, and closes the process's memory to other processes of this user.
///
/// The memory holds prompts, replies and keys. Root can still read it.
///
/// # Errors
///
/// Returns an error if the system refuses, which it does not do to a process that lowers its own
/// limits.
pub(crate) fn close_memory() -> Result<(), Error> {
    let system =
        |what| move |error: rustix::io::Errno| Error::System { what, source: error.into() };
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
        .map_err(system("switch core dumps off"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(system("close the process's memory to others"))
}

/// Keeps keys and texts of this process out of core dumps, of other processes of its user, and of
/// panic messages, as each worker does for itself. For programs beside it that hold keys.
///
/// # Errors
///
/// Returns an error if the system refuses, which it does not do to a process that lowers its own
/// limits.
pub fn confine() -> Result<(), Error> {
    quiet_panics();
    close_memory()
}

/// Logs where a thread panicked, without the panic message. The panic of a library may quote the
/// text that it could not process.
pub(crate) fn quiet_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let (thread, place) = told(panic);
        tracing::error!(thread, place, "a thread panicked; what it said is not kept");
    }));
}

/// Returns the thread's name and the source location of a panic.
fn told(panic: &PanicHookInfo<'_>) -> (String, String) {
    let thread = std::thread::current().name().unwrap_or("without a name").to_owned();
    (thread, panic.location().map_or_else(String::new, ToString::to_string))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use rustix::process::{DumpableBehavior, Resource, dumpable_behavior, getrlimit};

    use super::{close_memory, told};

    #[test]
    fn l8_a_worker_leaves_no_core_dump_and_is_not_looked_into() {
        close_memory().unwrap();
        assert_eq!(getrlimit(Resource::Core).maximum, Some(0));
        assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
    }

    #[test]
    fn l9_a_panics_words_are_not_kept() {
        static SAID: Mutex<Option<(String, String)>> = Mutex::new(None);
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|panic| *SAID.lock().unwrap() = Some(told(panic))));
        let caught = std::thread::Builder::new()
            .name("a slot".to_owned())
            .spawn(|| {
                let prompt = "canary";
                let _ = &prompt[..7];
            })
            .unwrap()
            .join();
        std::panic::set_hook(before);
        assert!(caught.is_err());
        let (thread, place) = SAID.lock().unwrap().take().unwrap();
        assert_eq!(thread, "a slot");
        assert!(place.contains("confine.rs:") && !place.contains("canary"), "{place}");
    }
}
