# a disk that can only be read
"$PYTHON" -m tests.flows.processes refresh "$DISK/w" "$VOCABULARY" "$FIRST"
mount -o remount,ro "$DISK"
set +e
"$PYTHON" -m flows refresh-corpus --corpus tea --source "$FIRST" --source "$SECOND" --workspace "$DISK/w"
echo "code $?"
"$PYTHON" -m flows continued-pretraining --corpus tea --steps 2 --workspace "$DISK/w"
echo "code $?"
"$PYTHON" -m flows serve --workspace "$DISK/w" --port "$PORT"
echo "code $?"
"$PYTHON" -m flows corpus gc --workspace "$DISK/w"
echo "code $?"
"$PYTHON" -m flows doctor --workspace "$DISK/w" | grep "cannot be written"
"$PYTHON" -m tests.flows.processes funnel "$DISK/w"
