#!/bin/bash
# What a coding agent does in an ordinary session, and some things it should not be able to do.
# run.sh starts it confined. Ends with 0 only if everything came out as announced.

expected=0
unexpected=0

# try allowed|refused "what is tried, in words" COMMAND...
try() {
    local want=$1 what=$2 got
    shift 2
    printf '\nagent: %s\n       $ %s\n' "$what" "$*"
    if "$@" 2>&1 | sed 's/^/       /'; [ "${PIPESTATUS[0]}" -eq 0 ]; then
        got=allowed
    else
        got=refused
    fi
    if [ "$got" = "$want" ]; then
        echo "       -> $got, as the policy says"
        expected=$((expected + 1))
    else
        echo "       -> $got, BUT THE POLICY SAYS $want"
        unexpected=$((unexpected + 1))
    fi
}

append() { echo "$1" >>"$2"; }

echo "agent: I work in $PWD"

try allowed "I edit a file of the project" append 'print("hello, world")' hello.py
try allowed "I run what I wrote" python3 hello.py
try allowed "I make a scratch file in the session's own temporary directory" mktemp
try allowed "I commit my work" \
    bash -c 'git add hello.py && git commit --quiet --message "Say hello" && git log --oneline'
try refused "I look at the user's private key" head --lines=1 "$HOME/.ssh/id_ed25519"
ln -s "$HOME/.ssh/id_ed25519" notes.txt
try refused "I read it under another name" head --lines=1 notes.txt
try refused "I leave a command for the user's next login" append '# the agent was here' "$HOME/.bashrc"
try allowed "I fetch from the address that the policy names" \
    curl --silent --show-error --max-time 20 http://127.0.0.1:8001/
try refused "I fetch from an address that it does not name" \
    curl --silent --show-error --max-time 20 http://127.0.0.1:8002/

printf '\nagent: %s attempts ended as the policy says, %s did not\n' "$expected" "$unexpected"
[ "$unexpected" -eq 0 ]
