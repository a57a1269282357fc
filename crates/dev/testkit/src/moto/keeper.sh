# Runs a moto server until whoever started it is gone.
# $1: the Python that has it; $2: its port; $3: the file for what it says.
"$1" -m moto.server -H 127.0.0.1 -p "$2" >"$3" 2>&1 </dev/null &
server=$!
# A server that ends by itself is noticed by its port, which stays silent.
read -r _
kill -KILL "$server" 2>/dev/null
wait
