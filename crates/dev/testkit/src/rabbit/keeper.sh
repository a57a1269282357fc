# Runs a RabbitMQ node until it is told to stop, or until whoever started it is gone.
# $1: the directory of RabbitMQ's scripts; $2: the node's own directory; $3, $4: a script that
# becomes a program in another system, and that system; or nothing.
enter=$3 root=$4
# Becomes the program, so that the process that is waited for is the program's.
enter() {
    if [ -n "$root" ]; then exec /bin/sh -c "$enter" enter "$root" "$@"; else exec "$@"; fi
}
rm -f "$2/ended"
# A shell gives what it starts beside itself no input but this one.
exec 3<&0
enter epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 >/dev/null 2>&1 </dev/null &
epmd=$!
# Tells the script to become the node instead of running it as a child.
export RUNNING_UNDER_SYSTEMD=1
enter "$1/rabbitmq-server" >"$2/output.log" 2>&1 </dev/null &
node=$!
# A node that ends by itself ends the wait for it at once.
{ while kill -0 "$node" 2>/dev/null; do sleep 0.2; done; touch "$2/ended"; } </dev/null >/dev/null 2>&1 &
watch=$!

read -r order
if [ "$order" = stop ]; then
    kill -TERM "$node"
    # Should it hang, the end of our input is the order to kill it.
    { read -r _ <&3; kill -KILL "$node"; } &
    impatient=$!
    wait "$node"
    kill -KILL "$impatient" "$watch" "$epmd" 2>/dev/null
elif [ "$order" = kill ]; then
    kill -KILL "$node" "$watch" "$epmd"
    wait "$node"
else
    kill -KILL "$node" "$watch" "$epmd" 2>/dev/null
    wait
    rm -rf "$2"
fi
