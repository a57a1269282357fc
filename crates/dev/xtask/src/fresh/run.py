"""Installs each artefact of a release on fresh Debian systems without Rust, uses it, and removes it.

Runs as root on Debian. Each system is an mmdebstrap root that systemd-nspawn starts: as one command, or booted with systemd
where units are tried. A scenario is a script for bash in that root; lines `@ NAME` in its output begin a timed step.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[4]
SUITES = ("bookworm", "trixie")

# What an operator's or a newcomer's system has before nsbridge comes. None of it is Rust.
PACKAGES = (
    "ca-certificates curl dbus procps python3 python3-venv rabbitmq-server rpm systemd systemd-sysv".split()
)
SOURCE_PACKAGES = "ca-certificates curl gcc git libc6-dev procps sudo".split()

# Limits in seconds from the artefact on this disk to the end of the first reply.
FIRST_REPLY_S = 60

# Differences after an uninstallation that are not nsbridge's.
LOGS = re.compile(
    r"^\./(var/(log|cache|lib/(dpkg|apt|rpm|systemd|ucf|rabbitmq))|tmp|run|dev|proc|sys|root/\.(cache|rpmdb))(/|$)"
    r"|^\./etc/(passwd|shadow|group|gshadow|subuid|subgid)-$|__pycache__|^\./etc/\.pwd\.lock$"
)


def mirror() -> str:
    """Returns the mirror of Debian that this machine's apt reads."""
    command = ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    for line in lines:
        if line.rstrip("/").endswith("/debian"):
            return line
    sys.exit("none of this machine's apt sources is a mirror of Debian")


def base(cache: Path, suite: str, packages: list[str]) -> Path:
    """Returns an archive of a system with these packages, made once per machine and list."""
    key = hashlib.sha256(" ".join(packages).encode()).hexdigest()[:12]
    archive = cache / f"{suite}-{key}.tar"
    if not archive.exists():
        print(f"== a system of {suite} in {archive}", flush=True)
        cache.mkdir(parents=True, exist_ok=True)
        new = archive.with_suffix(".new.tar")
        command = ["mmdebstrap", "--quiet", "--variant=apt", f"--include={','.join(packages)}"]
        source = f"deb {mirror()} {suite} main"
        subprocess.run([*command, "--aptopt=Acquire::Languages none", suite, new, source], check=True)
        new.rename(archive)
    return archive


class System:
    """A fresh system in a folder."""

    def __init__(self, root: Path, dist: Path):
        self.root, self.dist = root, dist
        (root / "etc/resolv.conf").unlink(missing_ok=True)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        (root / "etc/hostname").write_text("fresh\n")
        (root / "etc/hosts").write_text("127.0.0.1 localhost fresh\n::1 localhost\n")
        # The authorities are those of this machine, which may reach the network through a proxy.
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", root / "etc/ssl/certs/ca-certificates.crt")
        for mount in ("dist", "source"):
            (root / mount).mkdir(exist_ok=True)
        # pip's index is that of this machine.
        for name in ("etc/pip.conf", "root/.config/pip/pip.conf", "root/.netrc", "root/.pip/pip.conf"):
            if Path("/", name).exists():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path("/", name), root / name)

    def nspawn(self, *options: str) -> list[str]:
        return [
            *("systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={self.root}"),
            *("--resolv-conf=off", "--timezone=off", "--hostname=fresh", f"--bind-ro={self.dist}:/dist", f"--bind-ro={ROOT}:/source", *options),
        ]

    def run(self, script: str, network: bool = False, rust: bool = False) -> None:
        """Runs a script. Without `network` the system has a loopback of its own alone."""
        options = self.online() if network else ["--private-network"]
        if rust:
            home = Path.home()
            options += [f"--bind-ro={home}/.cargo/bin:/root/.cargo/bin", f"--bind-ro={home}/.rustup:/root/.rustup"]
        command = self.nspawn("--as-pid2", "--pipe", *options, "bash", "-euo", "pipefail", "-c", f"unset NOTIFY_SOCKET\n{script}")
        self.read(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))

    @staticmethod
    def online() -> list[str]:
        """Returns options that give the system the way of this machine to package indexes."""
        authorities = "/etc/ssl/certs/ca-certificates.crt"
        variables = {name: authorities for name in ("SSL_CERT_FILE", "PIP_CERT")}
        known = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy")
        variables |= {name: os.environ[name] for name in known if name in os.environ}
        return [f"--setenv={name}={value}" for name, value in variables.items()]

    @contextmanager
    def booted(self):
        """Boots the system with systemd, and gives a function that runs a script in it."""
        log = open(self.root.parent / "boot.log", "w")
        command = self.nspawn("--boot", "--private-network", "--console=pipe")
        boot = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.pid = leader = self.leader(boot)

            def run(script: str) -> None:
                inside = ["nsenter", "-t", leader, "-a", "bash", "-euo", "pipefail", "-c", script]
                self.read(subprocess.Popen(inside, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))

            run("for i in $(seq 60); do systemctl is-system-running --wait && break; sleep 1; done; true")
            yield run
        finally:
            boot.terminate()
            try:
                boot.wait(30)
            except subprocess.TimeoutExpired:
                boot.kill()
                boot.wait()

    @staticmethod
    def leader(boot: subprocess.Popen) -> str:
        for _ in range(100):
            children = Path(f"/proc/{boot.pid}/task/{boot.pid}/children").read_text().split()
            for child in children:
                # The leader becomes systemd when its root is ready.
                if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                    return child
            time.sleep(0.2)
        raise Failed("the system did not boot")

    def read(self, process: subprocess.Popen) -> None:
        """Prints what a script prints, and notes the time of each step."""
        name, start = None, time.monotonic()
        tail = []
        for line in process.stdout:
            print(f"    {line}", end="", flush=True)
            tail = [*tail[-30:], line]
            if line.startswith("@ "):
                self.note(name, start)
                name, start = line[2:].strip(), time.monotonic()
        if process.wait():
            raise Failed(f"the step {name!r} ended with {process.returncode}: {''.join(tail[-4:]).strip()}")
        self.note(name, start)

    steps: dict[str, float]
    # The first process of the booted system.
    pid: str

    def note(self, name: str | None, start: float) -> float:
        took = round(time.monotonic() - start, 1)
        if name:
            self.steps[name] = took
        return took

    def files(self) -> set[str]:
        """Returns all files of the system but for logs, caches and the like."""
        found = subprocess.run(["find", ".", "-xdev"], cwd=self.root, capture_output=True, text=True, check=True)
        return {line for line in found.stdout.splitlines() if not LOGS.search(line)}


class Failed(Exception):
    """A scenario failed."""


# A broker, a keyring and a worker of the bundled pair, without systemd. $models is the folder of the models.
SERVE = """
serve() {
    rabbitmq-server >/tmp/broker.log 2>&1 &
    for i in $(seq 60); do rabbitmqctl -q status >/dev/null 2>&1 && break; sleep 1; done
    mkdir -p /root/serve && cd /root/serve
    nsbridge keys generate --out keys.json
    printf '[worker]\\nmodel = "tale-7m"\\ngrace_s = 5\\n[broker]\\nurl = "amqp://localhost"\\n' >worker.toml
    printf '[keys]\\nkeyring = "keys.json"\\n[health]\\nlisten = "127.0.0.1:9464"\\n[models]\\n' >>worker.toml
    printf 'target = "%s/tale-7m"\\ndraft = "%s/tale-1m"\\n' "$models" "$models" >>worker.toml
    nsbridge worker --config worker.toml >worker.log 2>&1 &
    worker=$!
    for i in $(seq 100); do nsbridge health --ready 2>/dev/null && break; sleep 0.1; done
    nsbridge health --ready
}
finish() {
    kill -TERM $worker
    for i in $(seq 200); do kill -0 $worker 2>/dev/null || break; sleep 0.1; done
    wait $worker || { cat worker.log; exit 1; }
    rabbitmqctl -q stop
    cd / && rm -rf /root/serve
}
"""

DEMO = 'nsbridge demo --max-tokens 20 --seed 7'


def tarball(system: System) -> None:
    system.run(f"""
echo @ first reply
cd /root && tar xzf /dist/nsbridge-*-linux-gnu.tar.gz
cd nsbridge-* && PATH=$PWD/bin:$PATH
{DEMO}
echo @ the rest
nsbridge --version
man=share/man/man1; ls $man | wc -l
bash -n share/bash-completion/completions/nsbridge
cd .. && rm -rf nsbridge-*
""")


def installer(system: System) -> None:
    system.run("useradd --create-home newcomer")
    before = system.files()
    system.run(f"""
(cd /dist && exec python3 -m http.server --bind 127.0.0.1 8000) >/dev/null 2>&1 &
sleep 1
cat >/tmp/user.sh <<'END'
set -euo pipefail
cd
echo @ first reply
curl -fsSL http://127.0.0.1:8000/install.sh | NSBRIDGE_DOWNLOAD=http://127.0.0.1:8000 sh
PATH=$HOME/.local/bin:$PATH
{DEMO}
echo @ uninstall
curl -fsSL http://127.0.0.1:8000/install.sh | sh -s -- --uninstall
END
runuser -u newcomer -- env HOME=/home/newcomer bash /tmp/user.sh
""")
    left(before, system)


def deb(system: System) -> None:
    before = system.files()
    system.run(f"""
export DEBIAN_FRONTEND=noninteractive
echo @ first reply
apt-get install -qq -o Dpkg::Use-Pty=0 --yes --no-install-recommends /dist/nsbridge_*.deb
{DEMO}
echo @ a worker without systemd over RabbitMQ
models=/usr/share/nsbridge/models
{SERVE}
serve
nsbridge ask --model tale-7m --max-tokens 20 "Once a bear"
nsbridge doctor --config worker.toml
finish
echo @ uninstall
apt-get purge -qq --yes nsbridge
""", network=True)
    left(before, system)


def rpm(system: System) -> None:
    before = system.files()
    # No mirror of an RPM distribution is at hand: rpm of Debian installs it, without its dependencies.
    system.run(f"""
echo @ first reply
rpm --install --nodeps /dist/nsbridge-*.rpm
{DEMO}
echo @ uninstall
rpm -q --requires nsbridge
rpm -q --configfiles nsbridge
rpm --erase --nodeps nsbridge
""")
    left(before, system)


def wheel(system: System) -> None:
    before = system.files()
    system.run("""
echo @ pip install
python3 -m venv /root/env
/root/env/bin/pip install -q --disable-pip-version-check /dist/nsbridge-*-manylinux*.whl
""", network=True)
    system.run(f"""
PATH=/root/env/bin:$PATH
echo @ first reply
{DEMO}
echo @ clients and a model in Python over RabbitMQ
models=/root/env/share/nsbridge/models
{SERVE}
serve
python /source/python/tests/installed.py amqp://localhost keys.json tale-7m
finish
echo @ uninstall
pip uninstall -q --yes nsbridge
# pip leaves empty folders of data.
! find /root/env -type f | grep -i nsbridge
rm -rf /root/env
""")
    left(before, system)


def uvx(system: System) -> None:
    system.run(f"""
python3 -m venv /root/uv && /root/uv/bin/pip install -q --disable-pip-version-check uv
echo @ first reply
/root/uv/bin/uvx --from /dist/nsbridge-*-manylinux*.whl {DEMO}
""", network=True)


# What an operator does once, after the package is installed.
OPERATE = """
systemctl start rabbitmq-server
nsbridge keys generate --out /etc/nsbridge/keys/keys.json
chown nsbridge:nsbridge /etc/nsbridge/keys/keys.json
echo 'NSBRIDGE_BROKER__URL=amqp://localhost' >>/etc/nsbridge/nsbridge.env
cat >/etc/nsbridge/workers/tale-7m.toml <<'END'
[worker]
model = "tale-7m"
grace_s = 10
[broker]
[keys]
keyring = "/etc/nsbridge/keys/keys.json"
[health]
listen = "127.0.0.1:9464"
[models]
target = "/usr/share/nsbridge/models/tale-7m"
draft = "/usr/share/nsbridge/models/tale-1m"
END
cat >/etc/nsbridge/gateway.toml <<'END'
[server]
listen = "127.0.0.1:8080"
[broker]
[keys]
keyring = "/etc/nsbridge/keys/keys.json"
[access]
file = "/etc/nsbridge/keys/api-keys.json"
[store]
path = "/var/lib/nsbridge-gateway/gateway.redb"
key_file = "/var/lib/nsbridge-gateway/gateway.key"
[models.tale-7m]
END
"""


def systemd(system: System) -> None:
    system.run("""
export DEBIAN_FRONTEND=noninteractive
apt-get install -qq -o Dpkg::Use-Pty=0 --yes --no-install-recommends /dist/nsbridge_*.deb
systemd-analyze verify --man=no nsbridge-worker@tale-7m.service nsbridge-gateway.service
for unit in nsbridge-worker@.service nsbridge-gateway.service; do
    systemd-analyze security --offline=true --threshold=20 /usr/lib/systemd/system/$unit | tail -1
done
""", network=True)
    with system.booted() as run:
        run(OPERATE + """
state() { systemctl show -p "$2" --value "nsbridge-worker@tale-7m"; }
ask() { runuser -u nsbridge -- nsbridge ask --broker amqp://localhost --keyring /etc/nsbridge/keys/keys.json --model tale-7m "$@"; }
echo @ start of the worker, to its notification
systemctl start nsbridge-worker@tale-7m
test "$(systemctl is-active nsbridge-worker@tale-7m)" = active
systemctl show -p StatusText -p NRestarts nsbridge-worker@tale-7m
echo @ a reply
ask --max-tokens 20 "Once a bear"
echo @ a worker that hangs is killed by the watchdog and started again
old=$(systemctl show -p MainPID --value nsbridge-worker@tale-7m)
kill -STOP "$old"
for i in $(seq 90); do
    new=$(systemctl show -p MainPID --value nsbridge-worker@tale-7m)
    if [ "$new" != "$old" ] && [ "$new" != 0 ]; then
        if systemctl is-active -q nsbridge-worker@tale-7m; then break; fi
    fi
    sleep 1
done
journalctl -u nsbridge-worker@tale-7m --no-pager -o cat | grep -i "watchdog timeout"
test "$(systemctl show -p NRestarts --value nsbridge-worker@tale-7m)" -ge 1
ask --max-tokens 20 "Once a bear"
echo @ a stop drains
ask --max-tokens 20 "Once a bear" >/dev/null 2>&1
mkdir /tmp/asked && chown nsbridge /tmp/asked
for i in $(seq 24); do (ask --seed "$i" --max-tokens 400 "Once a bear" >/tmp/asked/$i.txt 2>/tmp/asked/$i.err; echo $? >/tmp/asked/$i.code) & done
sleep 0.6
systemctl stop nsbridge-worker@tale-7m
test "$(systemctl show -p Result --value nsbridge-worker@tale-7m)" = success
journalctl -u nsbridge-worker@tale-7m --no-pager -o cat | grep "draining after a signal" | tail -1
systemctl start nsbridge-worker@tale-7m
for i in $(seq 600); do test "$(ls /tmp/asked/*.code 2>/dev/null | wc -l)" = 24 && break; sleep 0.1; done
test "$(cat /tmp/asked/*.code | sort | uniq -c | tr -s ' ')" = " 24 0"
test "$(find /tmp/asked -name '*.txt' -size +200c | wc -l)" = 24
echo @ the gateway
key=$(runuser -u nsbridge -- nsbridge gateway keys add /etc/nsbridge/keys/api-keys.json --tenant default 2>/dev/null)
systemctl start nsbridge-gateway || { journalctl -u nsbridge-gateway --no-pager -o cat | tail -5; exit 1; }
curl -fsS http://127.0.0.1:8080/v1/completions -H "authorization: Bearer $key" -H 'content-type: application/json' \\
    -d '{"model": "tale-7m", "prompt": "Once a bear", "max_tokens": 10}'
echo
systemctl stop nsbridge-gateway nsbridge-worker@tale-7m
test "$(systemctl show -p Result --value nsbridge-gateway)" = success
systemctl --failed --no-legend
echo @ an upgrade without the broker, which comes back
systemctl start nsbridge-worker@tale-7m
systemctl stop rabbitmq-server
dpkg --install /dist/nsbridge_*.deb
test -z "$(dpkg --audit)"
sleep 12
systemctl start rabbitmq-server
for i in $(seq 300); do nsbridge health --ready 2>/dev/null && break; sleep 0.1; done
ask --max-tokens 20 "Once a bear"
echo @ removal stops the services
apt-get remove -qq --yes nsbridge
! pgrep -x nsbridge
""")


class Engine:
    """podman with a storage of its own, and buildah on the same storage."""

    def __init__(self, folder: Path, network: str):
        self.storage = ["--root", f"{folder}/storage", "--runroot", f"{folder}/run", "--storage-driver", "vfs"]
        self.network = network

    def command(self, program: str, *arguments: str) -> list[str]:
        # The runtime refuses a hierarchy of control groups of both versions, which it does not need.
        hide = "umount /sys/fs/cgroup/unified 2>/dev/null || true; exec \"$@\""
        groups = ["--cgroup-manager", "cgroupfs"] if program == "podman" else []
        return ["unshare", "--mount", "sh", "-c", hide, "sh", program, *self.storage, *groups, *arguments]

    def call(self, program: str, *arguments: str, fails: bool = False) -> str:
        done = subprocess.run(self.command(program, *arguments), capture_output=True, text=True, timeout=300)
        if (done.returncode != 0) != fails:
            raise Failed(f"{program} {' '.join(arguments[:6])} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return done.stdout + done.stderr

    def run(self, *arguments: str) -> list[str]:
        """Arguments of `podman run` as compose.yaml has them."""
        return [
            *("run", "--read-only", "--cap-drop=all", "--security-opt", "no-new-privileges", "--cgroups=disabled"),
            *("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--no-healthcheck"),
            *("--network", self.network, "--volume", "keys:/keys", *arguments),
        ]


def image(system: System) -> None:
    serve_image(system, None)


def mutants(system: System) -> None:
    """Images with a fault each. The scenario must fail for each of them."""
    for fault, script in {
        "the folder of keys belongs to root": "chown 0:0 $1/keys",
        "there are no authorities of TLS": "rm $1/etc/ssl/certs/ca-certificates.crt",
        "the command belongs to root alone": "chmod 700 $1/usr/bin/nsbridge",
    }.items():
        try:
            serve_image(system, script)
        except Failed as error:
            print(f"    {fault}: {str(error)[:200]}", flush=True)
        else:
            raise Failed(f"the image works although {fault}")


def serve_image(system: System, fault: str | None) -> None:
    with system.booted() as run, tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        run("""
systemctl start rabbitmq-server
cd /root
openssl req -quiet -x509 -newkey rsa:2048 -nodes -keyout k.pem -out c.pem -days 2 -subj /CN=localhost 2>/dev/null
systemd-run --quiet openssl s_server -quiet -accept 5671 -cert /root/c.pem -key /root/k.pem
""")
        engine = Engine(Path(folder), f"ns:/proc/{system.pid}/ns/net")
        podman = lambda *arguments, **options: engine.call("podman", *arguments, **options)  # noqa: E731
        (archive,) = system.dist.glob("*.image.tar.gz")
        start = time.monotonic()
        plain = Path(folder, "image.tar")
        with gzip.open(archive) as packed, plain.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
        podman("load", "--quiet", "--input", str(plain))
        name = podman("images", "--format", "{{.Repository}}:{{.Tag}}").split()[0]
        if fault:
            made = engine.call("buildah", "from", "--pull-never", name).split()[-1]
            place = engine.call("buildah", "mount", made).split()[-1]
            subprocess.run(["sh", "-c", fault, "sh", place], check=True)
            engine.call("buildah", "commit", "--quiet", "--format", "docker", made, "localhost/mutant:1")
            name = "localhost/mutant:1"
        podman(*engine.run("--rm", name, "keys", "generate", "--out", "/keys/keys.json"))
        facts = podman("inspect", "--format", "{{.Config.User}} {{.Config.StopSignal}} {{.Size}}", name).split()
        if facts[:2] != ["10001:10001", "SIGTERM"]:
            raise Failed(f"the image says {facts}")
        print(f"    {name}: {int(facts[2]) / 1e6:.1f} MB with its models", flush=True)
        variables = ["--env", "NSBRIDGE_BROKER__URL=amqp://localhost", "--env", "NSBRIDGE_KEYS__KEYRING=/keys/keys.json"]
        podman(*engine.run("--detach", "--name", "worker", "--env", "NSBRIDGE_WORKER__GRACE_S=20", *variables, name))
        for _ in range(100):
            done = subprocess.run(
                engine.command("podman", "exec", "worker", "nsbridge", "health", "--ready"), capture_output=True, text=True
            )
            if done.returncode == 0:
                break
            time.sleep(0.3)
        else:
            raise Failed(f"the worker is not ready: {done.stderr.strip()} {podman('logs', 'worker')[-600:]}")
        ask = [*engine.run("--rm", *variables, name), "ask", "--model", "tale-7m"]
        if len(podman(*ask, "--max-tokens", "20", "Once a bear")) < 20:
            raise Failed("the reply is too short")
        system.note("image: first reply", start)
        # A certificate of no authority is refused as such only by a client that knows some.
        said = podman(*ask[:-2], "--broker", "amqps://localhost:5671", *ask[-2:], "x", fails=True)
        if "invalid peer certificate" not in said:
            raise Failed(f"TLS without authorities: {said.strip()[-300:]}")
        start = time.monotonic()
        long = subprocess.Popen(
            engine.command("podman", *ask, "--max-tokens", "300", "Once a bear"), stdout=subprocess.PIPE, text=True
        )
        time.sleep(1.5)
        podman("stop", "--time", "35", "worker")
        code = podman("inspect", "--format", "{{.State.ExitCode}}", "worker").strip()
        took = system.note("image: drain", start)
        if code != "0" or took > 35:
            raise Failed(f"the worker ended with {code} after {took} s")
        podman("start", "worker")
        out, _ = long.communicate(timeout=120)
        if long.returncode or len(out) < 200:
            raise Failed(f"the reply over the stop ended with {long.returncode}: {out[-200:]}")
        podman("rm", "--force", "--time", "0", "worker")


# cargo and rustc of this machine, without the packages that it has downloaded.
RUST = """
export PATH=/root/.cargo/bin:$PATH
git config --global --add safe.directory '*'
git clone --quiet /source /root/nsbridge
cd /root/nsbridge
"""


def source(system: System) -> None:
    system.run(f"""{RUST}
echo @ the first command of README
cargo run --quiet --release -- demo --max-tokens 20 --seed 7
ls -l target/release/nsbridge
""", network=True, rust=True)


def source_tests(system: System) -> None:
    system.run(f"""{RUST}
echo @ the second command of README
cargo xtask test
""", network=True, rust=True)


SCENARIOS = {
    "tarball": (tarball, SUITES),
    "install.sh": (installer, SUITES),
    "deb": (deb, SUITES),
    "rpm": (rpm, ("trixie",)),
    "wheel": (wheel, SUITES),
    "uvx": (uvx, ("trixie",)),
    "systemd": (systemd, SUITES),
    "image": (image, ("trixie",)),
    "image-mutants": (mutants, ("trixie",)),
}

# Scenarios that compile for many minutes, and run only when they are named.
FROM_SOURCE = {"source": (source, ("trixie",)), "source-tests": (source_tests, ("trixie",))}


def left(before: set[str], system: System) -> None:
    """Checks that an uninstallation left nothing."""
    more = sorted(system.files() - before)
    if more:
        raise Failed(f"{len(more)} files are left: {', '.join(more[:8])}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dist", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("scenarios", nargs="*")
    arguments = parser.parse_args()
    both = {**SCENARIOS, **FROM_SOURCE}
    names = {f"{name}-{suite}": (of, suite) for name, (of, suites) in both.items() for suite in suites}
    wanted = arguments.scenarios or list(SCENARIOS)
    chosen = {name: names[name] for name in names if name in wanted or name.rsplit("-", 1)[0] in wanted}
    if not chosen:
        sys.exit(f"no such scenario: choose of {', '.join(names)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    report, failed = {"machine": platform.processor() or platform.machine(), "scenarios": {}}, 0
    for name, (scenario, suite) in chosen.items():
        print(f"== {name}", flush=True)
        packages = SOURCE_PACKAGES if scenario in (source, source_tests) else PACKAGES
        archive = base(arguments.cache, suite, packages)
        with tempfile.TemporaryDirectory(prefix="nsbridge-fresh-", dir="/var/tmp") as folder:
            root = Path(folder, "root")
            root.mkdir()
            subprocess.run(["tar", "xf", archive, "-C", root], check=True)
            system = System(root, arguments.dist)
            system.steps = {}
            said = "ok"
            try:
                scenario(system)
                if system.steps.get("first reply", 0) > FIRST_REPLY_S:
                    raise Failed(f"the first reply took more than {FIRST_REPLY_S} s")
            except Failed as error:
                failed, said = failed + 1, str(error)
            report["scenarios"][name] = {"result": said, "seconds": system.steps}
            print(f"   {name}: {said}", flush=True)
    (arguments.out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    for name, one in report["scenarios"].items():
        steps = ", ".join(f"{step} {seconds} s" for step, seconds in one["seconds"].items())
        print(f"{name}: {one['result'].splitlines()[0]} ({steps})")
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
