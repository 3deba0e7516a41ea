# a disk that can only be read
"$PYTHON" -m tests.flows.processes refresh "$DISK/w" "$VOCABULARY" "$FIRST"
mount -o remount,ro "$DISK"
set +e
"$PYTHON" -m flows.refresh_corpus --corpus tea --source "$FIRST" --source "$SECOND" --workspace "$DISK/w"
echo "code $?"
"$PYTHON" -m flows.continued_pretraining --corpus tea --steps 2 --workspace "$DISK/w"
echo "code $?"
"$PYTHON" -m flows.orchestration.serve --workspace "$DISK/w" --port "$PORT"
echo "code $?"
"$PYTHON" -m flows.orchestration.doctor --workspace "$DISK/w" | grep "cannot be written"
"$PYTHON" -m tests.flows.processes funnel "$DISK/w"
