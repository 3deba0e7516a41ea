# a disk that can only be read
cp -r "$MADE" "$DISK/w"
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
"$PYTHON" -c "from tests.corpora import Path, ask; print(ask(Path('$DISK/w'), 'from funnel')[0])"
