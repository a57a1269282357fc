//! Start of a Python process: connections of its slots, and the load of the model.

use std::fmt::Write as _;
use std::io;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener as StdListener, UnixStream as StdStream};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use nsbridge_base::random;
use rustix::process::{DumpableBehavior, dumpable_behavior};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::Error;
use crate::messages::{FromPython, Ready, Start};
use crate::plan::Plan;
use crate::pool::Slot;
use crate::prints;
use crate::process::Process;
use crate::wire::Wire;

/// Time limit of a connection's first message.
const HELLO_LIMIT: Duration = Duration::from_secs(5);

/// Time in which the last message of a process that has ended is read.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Process that has loaded the model.
pub(crate) struct Started {
    pub(crate) process: Arc<Process>,
    pub(crate) slots: Vec<Slot>,
    pub(crate) ready: Ready,
    /// Connection on which the process tells its state.
    pub(crate) control: Wire,
}

/// Starts a process and waits until it has loaded the model.
pub(crate) async fn start(plan: &Plan) -> Result<Started, Error> {
    let system = |what| move |source| Error::System { what, source };
    let address = format!("nsbridge-python-{}", random()?);
    let listener = listen(&address).map_err(system("listen on an abstract Unix socket"))?;
    let (mut control, process, loaded) = spawn(plan).await?;
    let process = Arc::new(process);
    let token = random()?;
    let work = async {
        // As above.
        let _ = begin(plan, &mut control, &address, &token).await;
        let mut slots = Vec::new();
        let accepted = accept(&mut slots, &listener, &process, plan.options.slots(), &token).await;
        accepted.map_err(system("accept a connection from Python"))?;
        let said = control.next().await;
        if let Ok(Some(FromPython::Ready(ready))) = &said {
            // A model with `run` has more of them.
            plan.options.tasks(ready.slots).map_err(|_| Error::Protocol)?;
            let more = accept(&mut slots, &listener, &process, ready.slots, &token).await;
            more.map_err(system("accept a connection from Python"))?;
        }
        Ok((slots, said))
    };
    let exited = async {
        let exit = process.exit().await;
        Error::EndedLoading { file: plan.file.clone(), exit }
    };
    let limit = plan.options.load_timeout();
    let done: Result<_, Error> = tokio::select! {
        biased;
        done = work => done,
        ended = exited => Err(ended),
        () = tokio::time::sleep(limit) => Err(Error::Timeout { file: plan.file.clone(), limit }),
    };
    match done {
        Ok((slots, Ok(Some(FromPython::Ready(ready))))) => {
            let _ = loaded.send(());
            Ok(Started { process, slots, ready, control })
        }
        Ok((_, Ok(Some(FromPython::Failed(why))))) => Err(failed(plan, why)),
        Ok((_, Ok(None) | Err(_))) => {
            let ended = timeout(HELLO_LIMIT, process.exit()).await;
            let loading = |exit| Error::EndedLoading { file: plan.file.clone(), exit };
            Err(ended.map_or(Error::Protocol, loading))
        }
        Ok(_) => Err(Error::Protocol),
        Err(error) => match timeout(LAST_WORDS, control.next()).await {
            Ok(Ok(Some(FromPython::Failed(why)))) => Err(failed(plan, why)),
            _ => Err(error),
        },
    }
}

fn failed(plan: &Plan, why: String) -> Error {
    Error::Load { file: plan.file.clone(), why }
}

/// Starts the process. Returns the connection to its control thread, and the sender that ends the
/// logging of its output.
async fn spawn(plan: &Plan) -> Result<(Wire, Process, oneshot::Sender<()>), Error> {
    let system = |what| move |source| Error::System { what, source };
    let connect = || StdStream::pair().map_err(system("make a pair of sockets"));
    let ((control, theirs), (output, prints)) = (connect()?, connect()?);
    for socket in [&control, &output] {
        socket.set_nonblocking(true).map_err(system("set up a socket"))?;
    }
    let mut clones = Vec::new();
    for _ in 0..2 {
        clones.push(prints.try_clone().map_err(system("copy a socket"))?);
    }
    drop(prints);
    let mut clones = clones.into_iter();
    let [stdout, stderr] =
        [(); 2].map(|()| clones.next().map_or_else(Stdio::null, |fd| OwnedFd::from(fd).into()));
    let (mut command, runner) = plan.command();
    command.stdin(OwnedFd::from(theirs)).stdout(stdout).stderr(stderr);
    let ours = control.try_clone().map_err(system("copy a socket"))?;
    let spawn = |source| Error::Spawn { python: plan.options.python.display().to_string(), source };
    let process = Process::spawn(command, ours).await.map_err(spawn)?;
    let mut control = Wire::new(control).map_err(system("watch a socket"))?;
    let (loaded, told) = oneshot::channel();
    let output = UnixStream::from_std(output).map_err(system("watch a socket"))?;
    tokio::spawn(prints::log(output, told, plan.options.show_output));
    // A process that has ended already is noticed later, with its exit code.
    let _ = control.send_bytes(runner.as_bytes()).await;
    Ok((control, process, loaded))
}

async fn begin(plan: &Plan, control: &mut Wire, address: &str, token: &str) -> io::Result<()> {
    let dumpable = !matches!(dumpable_behavior(), Ok(DumpableBehavior::NotDumpable));
    let start = Start {
        address,
        token,
        engine: plan.engine.is_some(),
        slots: plan.options.slots(),
        adapters: plan.engine.as_ref().map_or(&[], |engine| &engine.adapters),
        slots_of_engine: plan.engine.as_ref().is_some_and(|engine| engine.own_slots),
        batch: plan.options.batch(),
        default_batch: plan.options.default_batch(),
        show_output: plan.options.show_output,
        file: &plan.file,
        class: plan.class.as_deref(),
        models: &plan.models,
        options: &plan.options.options,
        output: plan.options.output.as_deref().and_then(|path| path.to_str()),
        load: plan.load,
        dumpable,
    };
    control.send(&start).await
}

/// Accepts connections of slots up to this number of slots. Connections of other processes are closed.
async fn accept(
    slots: &mut Vec<Slot>,
    listener: &UnixListener,
    process: &Arc<Process>,
    count: usize,
    token: &str,
) -> io::Result<()> {
    while slots.len() < count {
        let mut wire = Wire::of(listener.accept().await?.0);
        let Ok(Ok(Some(FromPython::Hello(hello)))) = timeout(HELLO_LIMIT, wire.next()).await else {
            continue;
        };
        let known = slots.iter().any(|slot| slot.index == hello.slot);
        if blake3::hash(hello.token.as_bytes()) != blake3::hash(token.as_bytes()) || known {
            continue;
        }
        let (process, stream) = (process.clone(), wire.into_std()?);
        slots.push(Slot { process, index: hello.slot, calls: 0, stream });
    }
    Ok(())
}

/// Listens on a name that no file system and no other user can take.
fn listen(address: &str) -> io::Result<UnixListener> {
    let listener = StdListener::bind_addr(&SocketAddr::from_abstract_name(address)?)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Returns 128 random bits as hexadecimal digits.
fn random() -> Result<String, Error> {
    let none = |error| Error::System { what: "get random bytes", source: io::Error::other(error) };
    let bytes = random::bytes::<16>().map_err(none)?;
    let mut text = String::new();
    bytes.iter().try_for_each(|byte| write!(text, "{byte:02x}")).expect("a string grows");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixStream as StdStream};
    use std::process::Command;
    use std::sync::Arc;

    use super::{accept, listen, random};
    use crate::process::Process;

    fn hello(address: &str, hello: &str) -> StdStream {
        let address = SocketAddr::from_abstract_name(address).unwrap();
        let mut stream = StdStream::connect_addr(&address).unwrap();
        stream.write_all(&(hello.len() as u32).to_be_bytes()).unwrap();
        stream.write_all(hello.as_bytes()).unwrap();
        stream
    }

    #[tokio::test]
    async fn a_connection_without_the_token_gets_no_slot() {
        let address = format!("nsbridge-test-{}", random().unwrap());
        let listener = listen(&address).unwrap();
        let (control, _theirs) = StdStream::pair().unwrap();
        let mut command = Command::new("sleep");
        command.arg("100");
        let process = Arc::new(Process::spawn(command, control).await.unwrap());
        let mut streams = Vec::new();
        for said in [
            r#"{"hello":{"token":"wrong","slot":0}}"#,
            r#"{"hello":{"token":"","slot":0}}"#,
            r#""begun""#,
            r#"{"hello":{"token":"right","slot":0}}"#,
            // A second connection of one slot.
            r#"{"hello":{"token":"right","slot":0}}"#,
            r#"{"hello":{"token":"right","slot":1}}"#,
        ] {
            streams.push(hello(&address, said));
        }
        let mut slots = Vec::new();
        accept(&mut slots, &listener, &process, 2, "right").await.unwrap();
        let indices: Vec<_> = slots.iter().map(|slot| slot.index).collect();
        assert_eq!(indices, [0, 1]);
        (&slots[0].stream).write_all(b"x").unwrap();
        let mut read = |at: usize| streams[at].read(&mut [0; 2]);
        assert_eq!(read(3).unwrap(), 1, "the slot's own connection");
        // Closed, with or without a message left unread.
        assert!(read(0).is_ok_and(|size| size == 0));
    }
}
