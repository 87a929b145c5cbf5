#!/bin/bash
# Sets the scene for agent.sh outside the sandbox, and starts it inside.
# Usage: run.sh PATH-OF-SANDBOX (`cargo xtask run` calls it)
set -eu
demo=$(cd "$(dirname "$0")" && pwd)
sandbox=$1
scene=$(mktemp --directory "$HOME/sandbox-demo.XXXXXX")
servers=()
end() {
    kill "${servers[@]}" 2>/dev/null || true
    rm -rf "$scene"
}
trap end EXIT

# A test machine is new: give its user what agents find on a real one.
if [ "$(cat /proc/sys/kernel/hostname)" = sandbox-vm ]; then
    mkdir -p "$HOME/.ssh"
    ssh-keygen -q -t ed25519 -N '' -C demo -f "$HOME/.ssh/id_ed25519"
    echo '# start-up file of the shell' >"$HOME/.bashrc"
fi
start_up_file=$(cat "$HOME/.bashrc" 2>/dev/null || true)

for port in 8001 8002; do
    mkdir "$scene/$port"
    echo "the server on port $port answers" >"$scene/$port/index.html"
    python3 -m http.server --bind 127.0.0.1 --directory "$scene/$port" "$port" >/dev/null 2>&1 &
    servers+=($!)
    until curl --silent --output /dev/null "http://127.0.0.1:$port/"; do sleep 0.2; done
done

mkdir "$scene/project"
cd "$scene/project"
git init --quiet --initial-branch=main
git config user.name demo
git config user.email demo@localhost

echo "demo: the policy is"
sed 's/^/    /' "$demo/policy.toml"
echo "demo: starting the agent; lines that begin with \"sandbox:\" explain what the kernel refused"
status=0
"$sandbox" run --policy "$demo/policy.toml" --workspace "$scene/project" -- "$demo/agent.sh" ||
    status=$?

if [ "$(cat "$HOME/.bashrc" 2>/dev/null || true)" != "$start_up_file" ]; then
    echo "demo: the start-up file was changed"
    status=1
fi
if [ "$status" -eq 0 ]; then
    echo "demo: the work was done, the key stayed secret, the start-up file is as it was"
else
    echo "demo: something did not come out as promised (status $status)"
fi
exit "$status"
